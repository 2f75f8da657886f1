"""usage: server.py DIR TEMPLATE PORT

Serves chat completions as vLLM's Rust front end takes them: `vllm-rs render` (DIR, made by setup.sh) reads each request,
renders it with a real chat template and refuses it in its own words. There is no engine: each answer is one sentence.
"""
import http.server
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

DIR, TEMPLATE, PORT = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
ANSWER = "It is done, and nothing more."
WITHIN = 60


def ask(path, body=None):
    """The status and the text of the front end's answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{FRONT}{path}", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=WITHIN) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def completion(request, prompt):
    """An answer, in the form that was asked for, and its type."""
    head = {"id": "1", "created": 1, "model": "tiny"}
    counts = {"prompt_tokens": prompt, "completion_tokens": 7, "total_tokens": prompt + 7}
    message = {"role": "assistant", "content": ANSWER}
    if not request.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {**head, "object": "chat.completion", "choices": [choice], "usage": counts}
        return json.dumps(body), "application/json"
    choices = [{"index": 0, "delta": message, "finish_reason": None}], [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    chunks = [{**head, "object": "chat.completion.chunk", "choices": choice} for choice in choices]
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n", "text/event-stream"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        status, text = ask(self.path)
        self.answer(status, text, "application/json")

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        status, text = ask(f"{self.path}/render", body)
        kind = "application/json"
        if status == 200:
            answer, kind = completion(json.loads(body), len(json.loads(text)["token_ids"]))
            text = answer.encode()
        self.answer(status, text, kind)

    def answer(self, status, text, kind):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as free:
    FRONT = free.server_port
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
template = DIR / "templates" / f"{TEMPLATE}.jinja"
command = [DIR / "vllm-rs", "render", DIR / "vllm-tiny", "--port", str(FRONT), "--served-model-name", "tiny",
           "--chat-template", template]
front = subprocess.Popen(command, env={**os.environ, "HF_HUB_OFFLINE": "1"})
try:
    while front.poll() is None:
        try:
            ask("/health")
            break
        except OSError:
            time.sleep(0.1)
    http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
finally:
    front.terminate()
