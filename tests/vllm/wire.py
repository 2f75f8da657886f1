"""Requests to respool, and its replies taken apart: status, JSON, or the chunks of a stream put together again.

Every reply is checked for what must hold of all of them: no field outside OpenAI's API, a well-formed stream.
"""

import http.client
import json
import re
from urllib.parse import urlsplit

# A busy machine needs minutes for the 300 random tokens of `guided_rambling`.
TIMEOUT = 600
CALL_ID = re.compile(r"[A-Za-z0-9]{9,40}")
FINISH_REASONS = {"stop", "length", "tool_calls", "content_filter", "function_call"}

# What OpenAI documents on chat replies, and `reasoning_content`, under which respool passes reasoning on.
LOGPROB = {"token": None, "logprob": None, "bytes": None}
LOGPROBS = {"content": {**LOGPROB, "top_logprobs": LOGPROB}, "refusal": {**LOGPROB, "top_logprobs": LOGPROB}}
CALL = {"index": None, "id": None, "type": None, "function": {"name": None, "arguments": None}}
MESSAGE = {"role": None, "content": None, "refusal": None, "annotations": None, "audio": None, "tool_calls": CALL,
           "function_call": None, "reasoning_content": None}
USAGE = {"prompt_tokens": None, "completion_tokens": None, "total_tokens": None,
         "prompt_tokens_details": {"cached_tokens": None, "audio_tokens": None},
         "completion_tokens_details": {"reasoning_tokens": None, "audio_tokens": None, "accepted_prediction_tokens": None,
                                       "rejected_prediction_tokens": None}}
CHOICE = {"index": None, "message": MESSAGE, "delta": MESSAGE, "logprobs": LOGPROBS, "finish_reason": None}
REPLY = {"id": None, "object": None, "created": None, "model": None, "choices": CHOICE, "usage": USAGE,
         "service_tier": None, "system_fingerprint": None}
ERROR = {"error": {"message": None, "type": None, "param": None, "code": None}}


class Reply:
    """One reply, whole or streamed; `message` and `finish` are those of the first choice."""

    def __init__(self, status, body, chunks=None):
        self.status = status
        self.body = body
        self.chunks = chunks
        choices = body.get("choices") or [{}]
        self.choices = choices
        self.message = choices[0].get("message") or {}
        self.finish = choices[0].get("finish_reason")
        self.error = body.get("error") or {}
        self.content = self.message.get("content")
        self.reasoning = self.message.get("reasoning_content")
        self.calls = calls_of(self.message)


def calls_of(message):
    return [[call["function"]["name"], json.loads(call["function"]["arguments"])] for call in message.get("tool_calls") or []]


def connect(base):
    return http.client.HTTPConnection(urlsplit(base).netloc, timeout=TIMEOUT)


def send(base, body, path="/v1/chat/completions"):
    """An open connection whose request has been sent."""
    connection = connect(base)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json", "authorization": "Bearer sk-client"})
    return connection


def get(base, path):
    connection = connect(base)
    connection.request("GET", path, headers={"authorization": "Bearer sk-client"})
    response = connection.getresponse()
    return response.status, response.read().decode()


def chat(base, body):
    """Sends a chat request, reads the reply and checks what holds of every reply."""
    response = send(base, body).getresponse()
    raw = response.read().decode()
    if response.getheader("content-type", "").startswith("text/event-stream"):
        assert body.get("stream"), "a stream that nobody asked for"
        return rebuild(response.status, raw)
    assert not (body.get("stream") and response.status == 200), "no stream came"
    value = json.loads(raw)
    check_fields(value, REPLY if response.status == 200 else ERROR)
    if response.status == 200:
        check_choices(value)
    return Reply(response.status, value)


def check_fields(value, known, path=""):
    """Fails on a field that `known` has not; below a None anything goes."""
    if known is None or value is None:
        return
    if isinstance(value, list):
        for item in value:
            check_fields(item, known, path + "[]")
        return
    for name, inner in value.items():
        assert name in known, f"field {path}.{name}"
        check_fields(inner, known[name], f"{path}.{name}")


def check_choices(value):
    for choice in value["choices"]:
        assert choice["finish_reason"] in FINISH_REASONS, choice["finish_reason"]
        ids = [call["id"] for call in choice["message"].get("tool_calls") or []]
        assert len(set(ids)) == len(ids) and all(map(CALL_ID.fullmatch, ids)), f"ids {ids}"
        assert (choice["finish_reason"] == "tool_calls") == bool(ids), choice


def rebuild(status, raw):
    """The chat completion that a client makes of a stream."""
    events = raw.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""], f"the end of the stream: {events[-3:]}"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    for chunk in chunks:
        check_fields(chunk, ERROR if "error" in chunk else REPLY)
    if "error" in chunks[-1]:
        return Reply(status, chunks[-1], chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1, "the id changed"
    value = {"choices": [], "usage": next((chunk["usage"] for chunk in chunks if chunk.get("usage")), None)}
    for chunk in chunks:
        for choice in chunk["choices"]:
            add(value["choices"], choice)
    check_choices(value)
    return Reply(status, value, chunks)


def add(choices, part):
    while len(choices) <= part["index"]:
        choices.append({"message": {}, "finish_reason": None, "logprobs": []})
    whole, delta = choices[part["index"]], part["delta"]
    message = whole["message"]
    assert whole["finish_reason"] is None, "a chunk after the finish"
    assert ("role" in delta) == (not message), "the role comes first, and once"
    whole["finish_reason"] = part["finish_reason"]
    whole["logprobs"] += (part.get("logprobs") or {}).get("content") or []
    for name in ("role", "content", "reasoning_content"):
        if delta.get(name) is not None:
            message[name] = message.get(name, "") + delta[name]
    for call in delta.get("tool_calls") or []:
        calls = message.setdefault("tool_calls", [])
        assert call["index"] == len(calls), "each call comes whole, in order"
        calls.append(call)
