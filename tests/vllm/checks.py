"""Checks respool before a real vLLM. usage: checks.py KIT_DIR qwen|gptoss VLLM RELAY STRANGER   (started by run.sh)

The model is made to say a given text token for token (kit/force.py), so vLLM's own parsers and HTTP layer do the rest.
STRANGER is a second respool that does not know vLLM's API key. Not checked here: parallel_tool_calls:false, required and
named tools, response_format: vLLM answers those under a grammar, against which a scripted text fails.
"""

import os
import re
import sys
import time
from pathlib import Path

import table
import wire

sys.path.insert(0, str(Path(__file__).resolve().parent / "kit"))
import force  # noqa: E402

KIT_DIR, MODEL, VLLM, RELAY, STRANGER = sys.argv[1:6]
SERVED = {"qwen": "tiny", "gptoss": "gpt-oss-20b"}[MODEL]
READ = ["read", {"path": "docs/ä"}]
STAT = ["stat", {"path": "b"}]
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"{name} a file", "parameters": {
        "type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}}}
    for name in ("read", "stat")
]
ABORT_SECONDS = 1.5

# The texts, in each model's own language. `broken` is a call that vLLM's parser leaves in the text.
TEXTS = {
    "qwen": {
        "plain": "</think>Grüße 🌍",
        "thought": "Need it.</think>Grüße 🌍",
        "call": 'Need it.</think>\n<tool_call>\n{"name": "read", "arguments": {"path": "docs/ä"}}\n</tool_call>',
        "two": '</think>\n<tool_call>\n{"name": "read", "arguments": {"path": "docs/ä"}}\n</tool_call>\n'
               '<tool_call>\n{"name": "stat", "arguments": {"path": "b"}}\n</tool_call>',
        "broken": '</think>\n<tool_call>\n{"name": "read", "arguments": {"path": "docs/ä",}}\n</tool_call>',
        "leaked": '</think><tools>\n{"name": "read", "arguments": {"path": "docs/ä"}}\n</tools>',
        "cut": '</think>I look.\n<tool_call>\n{"name": "read", "arguments": {"path": "docs/',
        "cut_bare": '</think><tool_call>\n{"name": "read", "arguments": {"path": "docs/',
    },
    "gptoss": {
        "plain": "<|channel|>final<|message|>Grüße 🌍",
        "thought": "<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant<|channel|>final<|message|>Grüße 🌍",
        "call": "<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant"
                '<|channel|>commentary to=functions.read <|constrain|>json<|message|>{"path":"docs/ä"}<|call|>',
        "two": '<|channel|>commentary to=functions.read <|constrain|>json<|message|>{"path":"docs/ä"}<|end|><|start|>assistant'
               '<|channel|>commentary to=functions.stat <|constrain|>json<|message|>{"path":"b"}<|call|>',
        "broken": '<|channel|>commentary to=functions.read <|constrain|>json{"path":"docs/ä"}<|call|>',
        "leaked": '<|channel|>final<|message|><tools>\n{"name": "read", "arguments": {"path": "docs/ä"}}\n</tools>',
        "cut": "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
               '<|channel|>commentary to=functions.read <|constrain|>json<|message|>{"path":"docs/',
        "cut_bare": '<|channel|>commentary to=functions.read <|constrain|>json<|message|>{"path":"docs/',
    },
}[MODEL]


def request(text=None, tools=True, cut=False, **fields):
    body = {"model": SERVED, "messages": [{"role": "user", "content": "hi"}], **fields}
    if tools:
        body["tools"] = TOOLS
    if text:
        body["vllm_xargs"] = force.xargs(KIT_DIR, MODEL, TEXTS[text], cut)
        if cut:
            body["max_tokens"] = body["vllm_xargs"]["force"].count(",") + 1
    return body


def expect(reply, calls=(), content=None, reasoning=None, finish="stop"):
    assert reply.status == 200 and not reply.error, f"{reply.status} {reply.error}"
    found = [reply.calls, (reply.content or "").strip() or None, reply.reasoning, reply.finish]
    assert found == [list(calls), content, reasoning, finish], found


def call(stream):
    expect(wire.chat(RELAY, request("call", stream=stream)), [READ], reasoning="Need it.", finish="tool_calls")


def two_calls(stream):
    expect(wire.chat(RELAY, request("two", stream=stream)), [READ, STAT], finish="tool_calls")


def no_call_wanted(stream):
    reply = wire.chat(RELAY, request("call", stream=stream, tool_choice="none"))
    assert reply.status == 200 and reply.calls == [] and reply.finish != "tool_calls", vars(reply)


def broken_call(stream):
    expect(wire.chat(RELAY, request("broken", stream=stream)), [READ], finish="tool_calls")


def leaked_call(stream):
    expect(wire.chat(RELAY, request("leaked", stream=stream)), [READ], finish="tool_calls")


def cut_call(stream):
    expect(wire.chat(RELAY, request("cut", cut=True, stream=stream)), content="I look.", finish="length")


def cut_call_alone(stream):
    reply = wire.chat(RELAY, request("cut_bare", cut=True, stream=stream))
    # After the head, which leaves first on a busy machine, an error's code is its status.
    assert reply.error.get("code") in ("truncated_tool_call", 422), vars(reply)
    assert "before it was complete" in reply.error["message"], vars(reply)


def answer_with_tools(stream):
    expect(wire.chat(RELAY, request("thought", stream=stream)), content="Grüße 🌍", reasoning="Need it.")


def passthrough(stream):
    expect(wire.chat(RELAY, request("plain", tools=False, stream=stream)), content="Grüße 🌍")


def passthrough_reasoning(stream):
    expect(wire.chat(RELAY, request("thought", tools=False, stream=stream)), content="Grüße 🌍", reasoning="Need it.")


def usage(stream):
    for tools in (True, False):
        text = "call" if tools else "plain"
        asked = {"stream_options": {"include_usage": True}} if stream else {}
        reply = wire.chat(RELAY, request(text, tools=tools, stream=stream, **asked))
        assert reply.body["usage"]["total_tokens"] > reply.body["usage"]["completion_tokens"] > 0, reply.body["usage"]
        if stream:
            assert reply.chunks[-1]["choices"] == [], "usage comes last, without choices"
            assert wire.chat(RELAY, request(text, tools=tools, stream=True)).body["usage"] is None, "usage that nobody asked for"


def logprobs(stream):
    for tools in (True, False):
        reply = wire.chat(RELAY, request("plain", tools=tools, stream=stream, logprobs=True, top_logprobs=1))
        found = reply.choices[0]["logprobs"]
        tokens = found if stream else found["content"]
        assert tokens and all("top_logprobs" in token for token in tokens), found


def choices(stream):
    reply = wire.chat(RELAY, request("call", stream=stream, n=2))
    assert [wire.calls_of(choice["message"]) for choice in reply.choices] == [[READ], [READ]], reply.choices


def round_trip(stream):
    """The ids that respool gave are taken back, with the reasoning."""
    message = wire.chat(RELAY, request("call", stream=stream)).message
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "text of the file"} for call in message["tool_calls"]]
    body = request("plain", stream=stream)
    body["messages"] += [message, *results]
    expect(wire.chat(RELAY, body), content="Grüße 🌍")


def dropped_reasoning(stream):
    """A client that drops the reasoning of a tool turn costs the model none of it: the prompt that vLLM rendered is as long as
    with it. Under another id respool knows nothing, and what gpt-oss gets is shorter."""
    first = wire.chat(RELAY, request("call", stream=stream))
    message, reasoning = dict(first.message), first.message["reasoning_content"]
    del message["reasoning_content"]
    stranger = {**message, "tool_calls": [{**call, "id": "unknown" + call["id"]} for call in message["tool_calls"]]}
    sent, dropped, unknown = (prompt_tokens(stream, turn) for turn in ({**message, "reasoning_content": reasoning}, message, stranger))
    assert dropped == sent, f"{dropped} prompt tokens, {sent} when the client sends the reasoning"
    assert MODEL != "gptoss" or sent - unknown >= len(reasoning.split()), f"the reasoning adds {sent - unknown} prompt tokens"


def prompt_tokens(stream, turn):
    """The length of the prompt that vLLM rendered behind this turn of calls."""
    body = request("plain", stream=stream, **({"stream_options": {"include_usage": True}} if stream else {}))
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "text of the file"} for call in turn["tool_calls"]]
    body["messages"] += [turn, *results]
    return wire.chat(RELAY, body).body["usage"]["prompt_tokens"]


def context_overflow(stream):
    for tools in (True, False):
        body = request(tools=tools, stream=stream)
        body["messages"] = [{"role": "user", "content": "word " * 12000}]
        reply = wire.chat(RELAY, body)
        assert reply.status == 400 and reply.error["code"] == "context_length_exceeded", vars(reply)
        assert "maximum context length" in reply.error["message"] and len(reply.error["message"]) < 1000, reply.error


def unknown_model(stream):
    for tools in (True, False):
        reply = wire.chat(RELAY, {**request(tools=tools, stream=stream), "model": "nobody"})
        assert reply.status == 404 and "does not exist" in reply.error["message"], vars(reply)


def bad_parameter(stream):
    for tools in (True, False):
        reply = wire.chat(RELAY, request(tools=tools, stream=stream, temperature=-1))
        assert reply.status == 400 and "temperature" in reply.error["message"], vars(reply)


def refused_key(stream):
    """The client's key is not vLLM's: a status that OpenClaw neither retries nor punishes, and words that do not either."""
    for tools in (True, False):
        reply = wire.chat(STRANGER, request("plain", tools=tools, stream=stream))
        assert reply.status == 422 and "key" in reply.error["message"].lower(), vars(reply)
        punished = re.search(r"unauthorized|forbidden|authentication|access denied|expired|\b40[13]\b", reply.error["message"], re.I)
        assert not punished, f"a word that makes OpenClaw disable the provider: {reply.error['message']}"


def client_leaves(stream):
    """In every route the work ends in vLLM soon after the client has gone."""
    for tools in (True, False):
        body = request(tools=tools, stream=stream, max_tokens=3000, ignore_eos=True)
        connection = wire.send(RELAY, body)
        assert within(20, lambda: running() == 1), "vLLM never started"
        connection.sock.close()
        assert within(ABORT_SECONDS, lambda: running() == 0), f"vLLM still works after {ABORT_SECONDS} s (tools {tools})"


def running():
    metrics = wire.get(VLLM, "/metrics")[1]
    return sum(float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.startswith("vllm:num_requests_running"))


def within(seconds, holds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.05)
    return holds()


def other_routes(_stream):
    assert wire.get(RELAY, "/health")[0] == 200 and wire.get(RELAY, "/ready")[0] == 200
    assert SERVED in wire.get(RELAY, "/v1/models")[1]
    assert wire.get(RELAY, f"/v1/models/{SERVED}")[0] == 200 and wire.get(RELAY, "/v1/models/nobody")[0] == 404
    version = os.environ.get("VERSION", "0.32.0")
    assert f'"{version}"' in wire.get(RELAY, "/version")[1], "a path that only vLLM has"
    status = wire.send(RELAY, {"model": SERVED, "prompt": "hi", "max_tokens": 2}, "/v1/completions").getresponse().status
    assert status == 200, f"/v1/completions {status}"


BOTH = [call, two_calls, no_call_wanted, broken_call, leaked_call, cut_call, cut_call_alone, answer_with_tools,
        passthrough, passthrough_reasoning, usage, logprobs, choices, round_trip, dropped_reasoning, context_overflow, unknown_model, bad_parameter,
        refused_key, client_leaves]
ALL = [(check, stream) for check in BOTH for stream in (True, False)] + [(other_routes, False)]


sys.exit(1 if table.run(MODEL, ALL) else 0)
