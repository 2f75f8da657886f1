#!/usr/bin/env bash
# usage: setup.sh DIR     Installs vLLM's Rust front end, a program of its package on PyPI, into DIR, where
# tests/llama/kit/setup.sh has put the chat templates. Neither a GPU nor torch is needed. Finished steps are skipped.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# = 1 ] || { echo "usage: setup.sh DIR" >&2; exit 2; }
mkdir -p "$1"
cd "$1"
version=0.33.0
[ -x vllm-venv/bin/python ] || { python3 -m venv vllm-venv; vllm-venv/bin/pip install -q tokenizers; }
if [ ! -x vllm-rs ]; then
  vllm-venv/bin/pip download -q --no-deps "vllm==$version" -d vllm-wheel
  unzip -qjo vllm-wheel/vllm-*.whl vllm/vllm-rs
  rm -r vllm-wheel
  chmod +x vllm-rs
fi
vllm-venv/bin/python "$here/mkmodel.py" vllm-tiny
