"""usage: run.py DIR RESPOOL [TEMPLATE...]

Sends requests of real clients, and conversations that templates refuse, to a REAL llama.cpp server (DIR, made by
kit/setup.sh), directly and through respool. Prints a row for each; exit 0 only if all of them work through respool,
with one request to the server in the second turn. With SERVER=sglang: to SGLang's front end (tests/sglang).
With SERVER=vllm-rust: to vLLM's Rust front end (tests/vllm-rust). With SERVER=vllm: to a REAL vLLM, which
tests/vllm/kit/setup.sh has put into VLLM_DIR; its variable VERSION counts here too, and FLAGS are added to its own.
"""
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests"))
from raw_http import free_port  # noqa: E402

DIR, RESPOOL, CHOSEN = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3:]
SERVER = os.environ.get("SERVER", "llama.cpp")
TEMPLATES = ["Qwen3.5-4B", "openai-gpt-oss-120b", "mistralai-Mistral-Nemo-Instruct-2407", "google-gemma-2-2b-it",
             "meta-llama-Llama-3.1-8B-Instruct", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use"]
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
WITHIN = 600
PICTURE = ("data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5"
           "ErkJggg==")


def post(base, path, body):
    """The status and the text of an answer."""
    request = urllib.request.Request(base + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=WITHIN) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")


class Counter(http.server.ThreadingHTTPServer):
    """Passes requests on to the server and counts those that ask for a completion."""

    daemon_threads = True

    def __init__(self, target):
        self.target, self.count = target, 0
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def take_count(self):
        count, self.count = self.count, 0
        return count


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.pass_on(None)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.count += self.path.endswith("/chat/completions")
        self.pass_on(body)

    def pass_on(self, body):
        headers = {"content-type": self.headers.get("content-type", "application/json")}
        request = urllib.request.Request(self.server.target + self.path, body, headers, method=self.command)
        try:
            with urllib.request.urlopen(request, timeout=WITHIN) as answer:
                status, kind, text = answer.status, answer.headers.get("content-type"), answer.read()
        except urllib.error.HTTPError as error:
            status, kind, text = error.code, error.headers.get("content-type"), error.read()
        self.send_response(status)
        self.send_header("content-type", kind or "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class Process:
    """A server, ended with the `with` block."""

    def __init__(self, name, base, *command, **variables):
        self.name, self.base = name, base
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env={**os.environ, **variables})

    def __enter__(self):
        began = time.time()
        while True:
            try:
                with urllib.request.urlopen(self.base + "/health", timeout=2):
                    return self
            except OSError:
                if self.process.poll() is not None or time.time() - began > WITHIN:
                    self.process.terminate()
                    self.log.seek(0)
                    sys.exit(f"run.py: {self.name} did not start:\n{self.log.read()[-3000:].decode(errors='replace')}")
                time.sleep(0.2)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def clients():
    """Requests of real clients: the client, its API, the body."""
    yield "OpenClaw, 54 tools", "chat", json.loads((TOP / "fixtures/openclaw/request-2026.9.6-fulltools.json").read_text())
    for file in sorted((TOP / "fixtures/clients/chat").glob("*.json")):
        yield file.stem, "chat", json.loads(file.read_text())
    for api in ("messages", "responses"):
        for file in sorted((TOP / "fixtures/clients" / api).glob("*-first.json")):
            yield file.stem, api, json.loads(file.read_text())
    for file in map(pathlib.Path, os.environ.get("CAPTURES", "").split()):
        found = json.loads(file.read_text())
        yield f"{file.parents[1].name} {file.stem}", found["path"].split("/v1/")[1].split("?")[0].split("/")[0], found["body"]


def conversations():
    """Conversations that some template refuses."""
    def user(text):
        return {"role": "user", "content": text}

    def call(ident):
        return {"id": ident, "type": "function", "function": {"name": "f", "arguments": "{}"}}

    def result(ident):
        return {"role": "tool", "tool_call_id": ident, "content": "x"}

    assistant = {"role": "assistant", "content": "b"}
    spoken = {"role": "assistant", "content": "b", "reasoning_content": "r", "tool_calls": [call("call_1")]}
    one = {"role": "assistant", "content": None, "tool_calls": [call("call_1")]}
    two = {"role": "assistant", "content": None, "tool_calls": [call("call_1"), call("call_2")]}
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {
        "type": "object", "properties": {"a": {"type": "string", "pattern": "^(a$", "maxLength": 65536}}}}}
    reference = json.loads(json.dumps(tool).replace('"pattern": "^(a$", "maxLength": 65536', '"$ref": "#/$defs/none"'))
    many = json.loads(json.dumps(tool).replace('"pattern": "^(a$", "maxLength": 65536', '"minLength": 9000, "maxLength": 9000'))
    dotted = json.loads(json.dumps(tool).replace('"pattern": "^(a$", ', "").replace('"f"', '"mcp.github.read"'))
    yield "a later system message", [user("a"), assistant, {"role": "system", "content": "s"}, user("c")], []
    yield "two users in a row", [user("a"), user("b")], []
    yield "developer", [{"role": "developer", "content": "s"}, user("a")], []
    yield "assistant last", [user("a"), assistant], []
    yield "no user", [{"role": "system", "content": "s"}, assistant, {"role": "system", "content": "t"}], []
    yield "empty content", [user("a"), {"role": "assistant", "content": ""}, user("b")], []
    yield "null content", [user("a"), {"role": "user", "content": None}], []
    yield "a call and its result", [user("a"), one, result("call_1"), user("b")], [tool]
    yield "two calls, one result", [user("a"), two, result("call_1"), user("b")], [tool]
    yield "the user after a result", [user("a"), one, result("call_1"), user("b"), assistant, user("c")], [tool]
    yield "words beside a call", [user("a"), spoken, result("call_1")], [tool]
    yield "a picture", [{"role": "user", "content": [{"type": "text", "text": "a"},
                                                     {"type": "image_url", "image_url": {"url": PICTURE}}]}], []
    yield "a wrong pattern", [user("a")], [tool]
    yield "a reference to nothing", [user("a")], [reference]
    yield "long strings", [user("a")], [many]
    yield "a dotted name", [user("a")], [dotted]


def requests():
    for name, api, body in clients():
        body.pop("stream_options", None)
        yield name, PATHS[api], {**body, "model": "tiny", "stream": False}
    for name, messages, tools in conversations():
        body = {"model": "tiny", "messages": messages, "max_tokens": 16}
        yield name, PATHS["chat"], {**body, "tools": tools} if tools else body


def words(text):
    try:
        error = json.loads(text).get("error") or {}
        return str(error.get("message", text) if isinstance(error, dict) else error)
    except ValueError:
        return text


def vllm(template, port):
    """The command that starts a real vLLM whose model always gives the same answer, and its variables."""
    sys.path.insert(0, str(TOP / "tests/vllm/kit"))
    import force
    folder = pathlib.Path(os.environ["VLLM_DIR"]).resolve()
    model, channel = ("gptoss", "<|channel|>final<|message|>") if "gpt-oss" in template else ("long", "")
    command = [TOP / "tests/vllm/kit/serve.sh", folder, model, str(port), "--served-model-name", "tiny", "--max-model-len", "131072",
               "--chat-template", DIR / "templates" / f"{template}.jinja", *os.environ.get("FLAGS", "").split()]
    return command, {"FORCE": force.xargs(folder, model, channel + "It is done, and nothing more.")["force"]}


def start(template, port):
    """The server with this template."""
    variables = {}
    if SERVER == "sglang":
        command = [DIR / "sglang-venv/bin/python", TOP / "tests/sglang/server.py", DIR, template, str(port)]
    elif SERVER == "vllm-rust":
        command = [sys.executable, TOP / "tests/vllm-rust/server.py", DIR, template, str(port)]
    elif SERVER == "vllm":
        command, variables = vllm(template, port)
    else:
        model = "harmony.gguf" if "gpt-oss" in template else "tiny.gguf"
        variables = {"LD_LIBRARY_PATH": str(DIR / "lib")}
        command = [DIR / "llama-server", "-m", DIR / model, "--port", str(port), "--jinja", "-c", "131072", "-np", "1", "-t", "1",
                   "--chat-template-file", DIR / "templates" / f"{template}.jinja"]
    return Process(SERVER, f"http://127.0.0.1:{port}", *map(str, command), **variables)


def check(template):
    failed = 0
    with start(template, free_port()) as server, tempfile.TemporaryDirectory() as state:
        counter = Counter(server.base)
        port = free_port()
        base = f"http://127.0.0.1:{port}"
        variables = {"RESPOOL__UPSTREAM__0__URL": f"http://127.0.0.1:{counter.server_port}", "RESPOOL__STATE_DIR": state,
                     "RESPOOL__ADAPT__LOSSY": '["messages.system_as_user", "messages.calls_as_text"]'}
        with Process("respool", base, RESPOOL, "serve", "--listen", f"127.0.0.1:{port}", **variables):
            for name, path, body in requests():
                status, text = post(server.base, path, body)
                direct = "ok" if status == 200 else f"{status}: {' '.join(words(text).split())[:150]}"
                turns = []
                for _ in range(2):
                    counter.take_count()
                    status, text = post(base, path, body)
                    turns.append((status, counter.take_count()))
                is_good = turns[1] == (200, 1) and turns[0][0] == 200
                failed += not is_good
                shown = ", ".join(str(count) if status == 200 else f"{count} ({status})" for status, count in turns)
                print(f"| {template} | {name} | {direct} | {shown} |{'' if is_good else ' <- ' + words(text)[:300]}", flush=True)
    return failed


print(f"| template | request | {SERVER} itself | requests through respool |\n|---|---|---|---|")
sys.exit(1 if sum(check(template) for template in CHOSEN or TEMPLATES) else 0)
