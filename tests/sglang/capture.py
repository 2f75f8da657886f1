"""usage: capture.py DIR OUT

Records what SGLang's own code (DIR, made by setup.sh) sends for things that models write (`serving.py` says what stands for
its engine), asked with tools, whole and streamed. OUT gets the requests and the replies, byte for byte, in the form of
`fixtures/vllm`. Texts whose names begin with `cut-` end at the token limit.
"""
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from raw_http import free_port, record_tool_turn, wait_for_health  # noqa: E402

DIR, OUT = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'
CODER = "<tool_call>\n<function=read>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>"
QWEN25 = {
    "ok-call": CALL,
    "ok-content-call": "Let me read it. " + CALL,
    "ok-two": CALL + "\n" + CALL.replace('"a"', '"b"'),
    "plain": "It is done, and nothing more.",
    "empty-args": CALL.replace('{"path": "a"}', "{}"),
    "bare-json": CALL[12:-13],
    "fenced-json": f"```json\n{CALL[12:-13]}\n```",
    "trailing-comma": CALL.replace('"a"}', '"a",}'),
    "missing-brace": CALL.replace("}}", "}"),
    "missing-close-tag": CALL.replace("\n</tool_call>", ""),
    "unknown-tool": CALL.replace('"read"', '"reed"'),
    "xml": CODER,
    "cut-name": CALL[:25],
    "cut-arguments": CALL[:49],
}
CODER_TEXTS = {
    "ok-call": CODER,
    "ok-content-call": "Let me read it. " + CODER,
    "ok-two": CODER + "\n" + CODER.replace("\na\n", "\nb\n"),
    "json": CALL,
    "missing-close-tag": CODER.replace("\n</tool_call>", ""),
    "missing-open-tag": CODER.replace("<tool_call>\n", ""),
    "missing-parameter-end": CODER.replace("\n</parameter>", ""),
    "cut-name": CODER[:22],
    "cut-parameter": CODER[:46],
}
# The parser, a chat template, the texts.
SETS = {"qwen25": ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", QWEN25), "qwen3_coder": ("Qwen3.5-4B", CODER_TEXTS)}


for parser, (template, texts) in SETS.items():
    folder = OUT / f"sglang-0.5.23-{parser}"
    folder.mkdir(parents=True, exist_ok=True)
    summary = folder / "summary.json"
    summary.write_text(json.dumps(texts, indent=1) + "\n")
    port = free_port()
    server = subprocess.Popen([DIR / "sglang-venv/bin/python", HERE / "server.py", DIR, template, str(port)],
                              env={**os.environ, "ANSWERS": str(summary), "PARSER": parser})
    try:
        wait_for_health(port)
        for name in texts:
            record_tool_turn(port, folder, name)
    finally:
        server.terminate()
        server.wait()
