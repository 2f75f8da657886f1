"""Agents of respool's on a real vLLM. usage: agents.py KIT_DIR qwen|gptoss VLLM KEY RESPOOL RUN_DIR   (started by run.sh)

Starts respool itself, and between it and vLLM a prompter that hands on every request and adds to each what the model is to say
(kit/force.py). The tools are respool's own, in a workspace in RUN_DIR. What vLLM's template or harmony made of a conversation is
read from the tokens of the prompt that vLLM itself reports.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import table
import wire

sys.path.insert(0, str(Path(__file__).resolve().parent / "kit"))
import force  # noqa: E402

KIT_DIR, MODEL, VLLM, KEY, RESPOOL, RUN_DIR = sys.argv[1:7]
SERVED = {"qwen": "tiny", "gptoss": "gpt-oss-20b"}[MODEL]
WORK = Path(RUN_DIR, f"work-{MODEL}")
NOTE = "the note says pineapple-7731"
ANSWER = "Grüße, it is done."
READ = ("read", {"path": "note.txt"})
EXEC = ("exec", {"command": "echo sum-$((40+2)) | tee made.txt"})
LONG = ("read", {"path": "long.txt"})
# Of a file that does not fit into the window: a token of `qwen` is hardly more than a byte.
LINES = {"qwen": 500, "gptoss": 1500}[MODEL]
FORMS = ["native", "markers", "react", "guided_json"]


def text(content):
    return {"qwen": "</think>", "gptoss": "<|channel|>final<|message|>"}[MODEL] + content


def native(name, arguments):
    """A call in the model's own language, which vLLM's parser reads."""
    if MODEL == "qwen":
        return 'Need it.</think>\n<tool_call>\n' + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"
    return ("<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant<|channel|>commentary "
            f"to=functions.{name} <|constrain|>json<|message|>{json.dumps(arguments)}<|call|>")


def xml(name, arguments):
    """A call that vLLM's parser leaves in the text."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return text(f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")


def markers(name, arguments):
    return text(f"I look.\n[TOOL:{name}|" + "|".join(f"{key}={value}" for key, value in arguments.items()) + "]")


def react(name, arguments):
    return text(f"Thought: I look.\nAction: {name}\nAction Input: {json.dumps(arguments)}")


def forced(value):
    """JSON under vLLM's grammar, which for gpt-oss also wants the format's name in the header."""
    return {"qwen": "</think>", "gptoss": "<|channel|>final <|constrain|>json<|message|>"}[MODEL] + json.dumps(value)


def guided(name, arguments):
    return forced({"tool_calls": [{"name": name, "arguments": arguments}]})


class Prompter(ThreadingHTTPServer):
    """Hands requests on to vLLM with the next text of the script, and remembers them with their replies."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.seen, self.asked = [], [], []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def to_say(self, *texts):
        self.script, self.seen, self.asked = list(texts), [], []

    def accepted(self):
        return [reply for _, status, reply in self.seen if status == 200]

    def refused(self):
        return [reply["error"]["message"] for _, status, reply in self.seen if status != 200]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.asked.append(self.path)
        self.answer(*self.ask(None))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != "/v1/chat/completions":
            self.answer(*self.ask(body))
            return
        script = self.server.script
        if script:
            body["vllm_xargs"] = force.xargs(KIT_DIR, MODEL, script[0])
        body["return_token_ids"] = True
        response, raw = self.ask(body)
        # Noted before it leaves: whoever has the answer may ask at once what was seen.
        self.server.seen.append((body, response.status, json.loads(raw) if raw.startswith(b"{") else None))
        if response.status == 200 and script:
            script.pop(0)
        self.answer(response, raw)

    def ask(self, body):
        """Asks vLLM; its response and the bytes of the body."""
        connection = http.client.HTTPConnection(urlsplit(VLLM).netloc, timeout=600)
        sent = None if body is None else json.dumps(body)
        headers = {name: self.headers[name] for name in ("authorization", "content-type") if self.headers[name]}
        connection.request(self.command, self.path, sent, headers)
        response = connection.getresponse()
        return response, response.read()

    def answer(self, response, raw):
        self.send_response(response.status)
        self.send_header("content-type", response.getheader("content-type", ""))
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_):
        pass


def config(upstream):
    """Settings with an agent for each form of calls, and one that is told of a larger window than there is."""
    agent = 'tools = ["read", "exec"]\nmodel_timeout = "9m"\nrun_timeout = "30m"\nmax_tokens = 300\n'
    agents = [f'[agents.{form}]\nmodel = "{SERVED}"\nparsers = ["{form}"]\n{agent}' for form in FORMS]
    agents.append(f'[models.oversold]\ntarget = "{SERVED}"\ncontext_window = 65536\n[agents.misled]\nmodel = "oversold"\n{agent}')
    rules = [f'[[tools.policy.rule]]\ntool = "{tool}"\nthen = "allow"' for tool in ("read", "exec")]
    return "\n".join([f'state_dir = "state-{MODEL}"', "[log]", 'format = "json"', "[[upstream]]", f'url = "{upstream}"',
                      f'api_key = "{KEY}"', "[tools.local]", f'workspace = "{WORK}"', *rules, *agents, ""])


def start_respool(prompter):
    """Its process and its address."""
    WORK.mkdir()
    (WORK / "note.txt").write_text(NOTE + "\n")
    (WORK / "long.txt").write_text("".join(f"line {number} of a long file\n" for number in range(LINES)) + "its end\n")
    settings = Path(RUN_DIR, f"agents-{MODEL}.toml")
    settings.write_text(config(f"http://127.0.0.1:{prompter.server_port}"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % free.getsockname()[1]
    with open(Path(RUN_DIR, f"agents-{MODEL}.log"), "w") as log:
        process = subprocess.Popen([RESPOOL, "serve", "--config", settings, "--listen", address], cwd=RUN_DIR, stderr=log)
    for _ in range(200):
        try:
            assert wire.get(f"http://{address}", "/health")[0] == 200
            return process, f"http://{address}"
        except OSError:
            assert process.poll() is None, Path(log.name).read_text()
            time.sleep(0.05)
    process.kill()
    sys.exit("respool does not answer")


def ask(agent, stream, *texts):
    """What the client gets when the model says these texts one after another."""
    PROMPTER.to_say(*texts)
    (WORK / "made.txt").unlink(missing_ok=True)
    body = {"model": agent, "messages": [{"role": "user", "content": "Do it."}], "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    reply = wire.chat(RELAY, body)
    assert reply.status == 200 and not reply.error, f"{reply.status} {reply.error}; vLLM refused {PROMPTER.refused()}"
    assert (reply.content, reply.finish, reply.calls) == (ANSWER, "stop", []), vars(reply)
    assert not PROMPTER.script, "the model was not asked to the end"
    used = [answer["usage"]["total_tokens"] for answer in PROMPTER.accepted()]
    assert reply.body["usage"]["total_tokens"] == sum(used), f"{reply.body['usage']} is not the sum of {used}"
    return reply


def prompts():
    """The prompts of the last run as vLLM rendered them."""
    return [detokenized(reply["prompt_token_ids"]) for reply in PROMPTER.accepted()]


def detokenized(tokens):
    connection = wire.connect(VLLM)
    connection.request("POST", "/detokenize", json.dumps({"model": SERVED, "tokens": tokens}), {"content-type": "application/json"})
    return json.loads(connection.getresponse().read())["prompt"]


def works(agent, stream, call, answer=None):
    """Two tools, one after another, in this form: made, their results seen by the model, told to the client."""
    reply = ask(agent, stream, call(*READ), call(*EXEC), answer or text(ANSWER))
    assert PROMPTER.refused() == [], PROMPTER.refused()
    assert (WORK / "made.txt").read_text() == "sum-42\n", "exec did not run"
    first, second, third = prompts()
    assert NOTE not in first and NOTE in second and "sum-42" not in second, "the prompts of the first two calls"
    assert NOTE in third and "sum-42" in third, f"the results are not in what vLLM rendered: {third}"
    progress = reply.reasoning or ""
    assert ("[read: note.txt] ok" in progress and "[exec: echo sum" in progress) == stream, progress
    return first, second


def native_calls(stream):
    """The tools are declared, and the call comes back with its result (for gpt-oss also with its reasoning) in the model's own language."""
    declared, returned = {
        "qwen": ('"name": "read"', "<|im_start|>tool\n"),
        "gptoss": ("type read = ", 'Need it.<|end|><|start|>assistant to=functions.read<|channel|>commentary json<|message|>'
                   '{"path": "note.txt"}<|call|><|start|>functions.read<|channel|>commentary to=assistant<|message|>'),
    }[MODEL]
    first, second = works("native", stream, native)
    assert declared in first and returned + NOTE in second, second[-400:]


def calls_left_in_the_text(stream):
    works("native", stream, xml)


def marker_calls(stream):
    first, second = works("markers", stream, markers)
    assert "[TOOL:NAME|argument=value" in first and "[TOOL_RESULT: read]" in second, f"{first}\n{second}"


def react_calls(stream):
    first, second = works("react", stream, react)
    assert "Action Input: " in first and "[TOOL_RESULT: read]" in second, f"{first}\n{second}"


def guided_calls(stream):
    """vLLM's own structured output: a text that does not follow the grammar that it made of our schema would end in a 500."""
    works("guided_json", stream, guided, forced({"answer": ANSWER}))
    formats = [body.get("response_format", {}).get("type") for body, _, _ in PROMPTER.seen]
    assert formats == ["json_schema"] * 3, formats


def guided_rambling(stream):
    """Nobody tells the model what to say: the grammar holds it to JSON, `max_tokens` cuts it, and the run ends, with an answer or an error of its own."""
    PROMPTER.to_say()
    reply = wire.chat(RELAY, {"model": "guided_json", "messages": [{"role": "user", "content": "Do it."}], "stream": stream})
    assert reply.status == 200 or reply.error.get("code"), vars(reply)
    said = [answer["choices"][0]["message"]["content"] for answer in PROMPTER.accepted()]
    assert said and PROMPTER.refused() == [], f"{said} {PROMPTER.refused()}"


def learned_window(stream):
    """The window is vLLM's: a result that is larger is cut. The estimate knows gpt-oss's tokens, so vLLM never has to refuse them."""
    ask("native", stream, native(*LONG), text(ANSWER))
    long_prompt = prompts()[1]
    assert "line 0 of" in long_prompt and "its end" in long_prompt and "left out" in long_prompt, long_prompt
    assert MODEL == "qwen" or PROMPTER.refused() == [], PROMPTER.refused()


def refused_prompt(stream):
    """A window that is smaller than it is said to be: vLLM refuses the prompt, and a smaller one is sent."""
    ask("misled", stream, native(*LONG), text(ANSWER))
    refused = PROMPTER.refused()
    assert refused and all("maximum context length" in message for message in refused), refused
    assert "left out" in prompts()[1], prompts()[1]


PROMPTER = Prompter()
PROCESS, RELAY = start_respool(PROMPTER)
BOTH = [native_calls, calls_left_in_the_text, marker_calls, react_calls, guided_calls, learned_window, refused_prompt]
ALL = [(check, stream) for check in BOTH for stream in (True, False)] + [(guided_rambling, False)]
try:
    failed = table.run(f"agents on {MODEL}", ALL)
finally:
    PROCESS.terminate()
    PROCESS.wait(20)
sys.exit(1 if failed else 0)
