"""usage: capture.py DIR OUT

Records what a REAL llama.cpp server (DIR, made by kit/setup.sh) sends for things that models write: for each template
and each text, a tiny model that writes exactly that text is asked with tools, whole and streamed. OUT gets the requests
and the replies, byte for byte, in the form of `fixtures/vllm`. Where the text would break the server's grammar, the
server is asked with `tool_choice: "none"`, as respool asks for unparsed text.
"""
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from raw_http import free_port, record_tool_turn, wait_for_health  # noqa: E402

DIR, OUT = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
PYTHON = DIR / "venv/bin/python"
CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'
HERMES = {
    "ok-call": CALL,
    "ok-content-call": "Let me read it. " + CALL,
    "ok-two": CALL + "\n" + CALL.replace('"a"', '"b"'),
    "plain": "It is done, and nothing more.",
    "bare-json": '{"name": "read", "arguments": {"path": "a"}}',
    "fenced-json": '```json\n{"name": "read", "arguments": {"path": "a"}}\n```',
    "raw-trailing-comma": CALL.replace('"a"}', '"a",}'),
    "raw-missing-brace": CALL.replace("}}", "}"),
    "raw-missing-close-tag": CALL.replace("\n</tool_call>", ""),
    "raw-xml": "<tool_call>\n<function=read>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>",
}
SETS = {"hermes": ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", HERMES)}


def record(folder, template, name, text):
    model = DIR / "capture.gguf"
    subprocess.run([PYTHON, HERE / "kit/mkmodel.py", model, text, __file__], check=True)
    port = free_port()
    command = [DIR / "llama-server", "-m", model, "--alias", name, "--port", str(port), "--jinja", "-c", "4096", "-np", "1", "-t", "1",
               "--chat-template-file", DIR / "templates" / f"{template}.jinja"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              env={"LD_LIBRARY_PATH": str(DIR / "lib")})
    try:
        wait_for_health(port)
        record_tool_turn(port, folder, name, **({"tool_choice": "none"} if name.startswith("raw-") else {}))
    finally:
        server.terminate()
        server.wait()


for kind, (template, texts) in SETS.items():
    folder = OUT / f"llama.cpp-b11434-{kind}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        record(folder, template, name, text)
    (folder / "summary.json").write_text(json.dumps(texts, indent=1) + "\n")
