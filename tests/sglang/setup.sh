#!/usr/bin/env bash
# usage: setup.sh DIR     Installs the request models of SGLang's package into DIR, where tests/llama/kit/setup.sh has put
# the chat templates. Neither a GPU nor torch is needed. Finished steps are skipped.
set -euo pipefail
[ $# = 1 ] || { echo "usage: setup.sh DIR" >&2; exit 2; }
mkdir -p "$1"
cd "$1"
version=0.5.23
[ -x sglang-venv/bin/uvicorn ] || {
  python3 -m venv sglang-venv
  sglang-venv/bin/pip install -q fastapi uvicorn openai msgspec orjson jinja2 jsonschema partial_json_parser numpy pybase64 requests tqdm ipython
}
if [ ! -d sglang-package ]; then
  sglang-venv/bin/pip download -q --no-deps "sglang==$version" -d sglang-wheel
  python3 -m zipfile -e sglang-wheel/sglang-*.whl sglang-package
fi
