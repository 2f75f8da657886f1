"""usage: VERSION=0.33.0 capture.py KIT_DIR [SET...]

Records what a REAL vLLM of this version (KIT_DIR, made by kit/setup.sh) sends for the texts of a model that were recorded of
0.32.0: the requests of those captures, with the same texts in the tokens of KIT_DIR's models. `fixtures/vllm` gets the
requests and the replies, byte for byte.
"""
import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parents[1] / "fixtures/vllm"
sys.path[:0] = [str(HERE / "kit"), str(HERE.parent)]
import force  # noqa: E402
from raw_http import encode_chat, exchange, free_port  # noqa: E402

KIT_DIR, VERSION = sys.argv[1], os.environ["VERSION"]
RECORDED = "0.32.0"
# The model of each set, and what vLLM was started with.
SETS = {
    "scripted-hermes-qwen3": ("qwen", []),
    "scripted-qwen3coder": ("qwen", ["--tool-call-parser", "qwen3_coder", "--reasoning-parser", ""]),
    "gptoss-harmony": ("gptoss", []),
}
# The tokens that end a reply, by their numbers in the recorded requests.
ENDS = {2: "<|im_end|>", 200002: "<|return|>", 200012: "<|call|>"}


def prepared(file, model, text):
    """The body of a recorded request, in which the model is told to say the text in its present tokens."""
    body = json.loads(file.read_bytes().split(b"\r\n\r\n", 1)[1])
    recorded = body["vllm_xargs"]["force"].split(",")
    end = ENDS.get(int(recorded[-1]), "")
    body["vllm_xargs"] = force.xargs(KIT_DIR, model, text.removesuffix(end) + end, cut=True)
    if body["max_tokens"] == len(recorded):
        body["max_tokens"] = body["vllm_xargs"]["force"].count(",") + 1
    return body


def record(kind, model, port):
    old, new = FIXTURES / f"v{RECORDED}-{kind}", FIXTURES / f"v{VERSION}-{kind}"
    new.mkdir(exist_ok=True)
    texts = {name: entry["raw"] for name, entry in json.loads((old / "summary.json").read_text()).items() if "raw" in entry}
    for name, text in texts.items():
        request = f"{name}.nonstream.req.http"
        body = prepared(old / request, model, text)
        (new / request).write_bytes(encode_chat(body))
        (new / f"{name}.nonstream.resp.http").write_bytes(exchange(port, encode_chat(body)))
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        (new / f"{name}.stream.resp.http").write_bytes(exchange(port, encode_chat(streamed)))
    (new / "summary.json").write_text(json.dumps(texts, indent=1) + "\n")
    print(new.name, len(texts), flush=True)


for kind in sys.argv[2:] or SETS:
    model, arguments = SETS[kind]
    port = free_port()
    server = subprocess.Popen([HERE / "kit/serve.sh", KIT_DIR, model, str(port), "--max-model-len", "8192", *arguments])
    try:
        while server.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
                break
            except OSError:
                time.sleep(1)
        record(kind, model, port)
    finally:
        server.terminate()
        server.wait()
