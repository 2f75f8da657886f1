#!/usr/bin/env bash
# Runs vLLM's own tests of /v1/responses and /v1/messages against respool before a scripted model server, and compares the outcome with
# expected.toml. Exit 0 if nothing differs from it.
# usage: run.sh DIR [PYTEST ARGUMENT...]      DIR, outside the repository, gets vLLM's sources (47 MB, from PyPI) and Python packages, once
#   RESPOOL=PATH a binary that is already built   RESPOOL_LOG=FILE keeps respool's log
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) top=$(cd "$(dirname "$0")/../.." && pwd)
[ $# -ge 1 ] || { echo "usage: run.sh DIR [PYTEST ARGUMENT...]" >&2; exit 2; }
mkdir -p "$1"; dir=$(cd "$1" && pwd); shift
export VLLM_VERSION=0.33.0 PYTHONDONTWRITEBYTECODE=1
checksum=f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112

# Where the tests lie in vLLM's sources. They are used as they are; `tests.utils` and `vllm` are ours (server.py, stand_in.py).
tests=(
  entrypoints/anthropic/test_anthropic_messages_conversion.py
  entrypoints/anthropic/test_error_type_mapping.py
  entrypoints/anthropic/test_messages.py
  entrypoints/multimodal/openai/responses/test_image.py
  entrypoints/openai/chat_completion/test_completion_with_function_calling.py
  entrypoints/openai/responses/test_basic.py
  entrypoints/openai/responses/test_function_call.py
  entrypoints/openai/responses/test_function_call_parsing.py
  entrypoints/openai/responses/test_harmony.py
  entrypoints/openai/responses/test_mcp_tools.py
  entrypoints/openai/responses/test_namespace_tool_separator.py
  entrypoints/openai/responses/test_parsable_context.py
  entrypoints/openai/responses/test_protocol.py
  entrypoints/openai/responses/test_responses_utils.py
  entrypoints/openai/responses/test_sampling_params.py
  entrypoints/openai/responses/test_serving_responses.py
  entrypoints/openai/responses/test_simple.py
  entrypoints/openai/responses/test_stateful.py
  entrypoints/openai/responses/test_structured_output.py
  tool_use/test_responses_request_validations.py
)
helpers=(entrypoints/conftest.py entrypoints/multimodal/conftest.py entrypoints/openai/responses/conftest.py)

install() {
  local wanted; wanted=$(cat "$here/requirements.txt" <(echo "$VLLM_VERSION") | cksum)
  [ "$(cat "$dir/.installed" 2>/dev/null)" != "$wanted" ] || return 0
  python3 -m venv "$dir/venv"
  "$dir/venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
  local archive=$dir/vllm-$VLLM_VERSION.tar.gz
  [ -s "$archive" ] || PYTHONPATH=$here/fetch "$dir/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps \
    --no-build-isolation --no-binary :all: --dest "$dir" "vllm==$VLLM_VERSION"
  echo "$checksum  $archive" | sha256sum --check --quiet
  tar -xzf "$archive" -C "$dir" "vllm-$VLLM_VERSION/tests"
  echo "$wanted" > "$dir/.installed"
}

# The tests alone, so that nothing else of vLLM's is imported by accident.
lay_out() {
  local suite=$dir/suite file; rm -rf "$suite"; mkdir -p "$suite/gpt_oss"; : > "$suite/gpt_oss/__init__.py"
  for file in "${tests[@]}" "${helpers[@]}"; do
    install_file "$dir/vllm-$VLLM_VERSION/tests/$file" "$suite/tests/$file"
  done
  find "$suite/tests" -type d -exec touch {}/__init__.py \;
}
install_file() { mkdir -p "$(dirname "$2")"; cp "$1" "$2"; }

install
lay_out
export RESPOOL=${RESPOOL:-$top/target/debug/respool} PYTHONPATH=$dir/suite:$here OUTCOMES=$dir/outcomes.json
[ -x "$RESPOOL" ] || cargo build --quiet --manifest-path "$top/Cargo.toml"
cd "$dir/suite"
rm -f "$OUTCOMES"
"$dir/venv/bin/python" -m pytest -q -p suite_plugin -p no:cacheprovider --tb=line -o asyncio_default_fixture_loop_scope=function \
  -W ignore "${@:-tests}" > "$dir/pytest.log" 2>&1 || true
exec "$dir/venv/bin/python" "$here/compare.py" "$here/expected.toml" "$OUTCOMES" $([ $# -gt 0 ] || echo whole)
