"""The official OpenAI Python SDK reads what respool makes of a vLLM-like upstream. Started by run.sh, which sets BASE_URL.

Every reply is read with the SDK's own types and accumulators; a field that the SDK's types do not know is a failure
(`model_extra`), apart from the reasoning that respool passes on.
"""

import json
import os
import re
import sys
import time

import openai
from openai import OpenAI

MODEL = "gpt-oss-120b"
AGENT = "helper"
"""An agent of respool's: runs `read` itself."""
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"{name} a file", "parameters": PARAMETERS, "strict": True}}
    for name in ("read", "stat")
]
READ = ["read", {"path": "a.txt"}]
STAT = ["stat", {"path": "ä.txt"}]
CALL_ID = re.compile(r"[A-Za-z0-9]{9,40}")
KNOWN_EXTRAS = {"reasoning_content", "index"}
"""`index`: the SDK's own accumulator leaves it on calls."""

client = OpenAI(base_url=os.environ["BASE_URL"], api_key="sk-test", max_retries=0, timeout=30)


def request(order, **fields):
    """A request that orders a reply from the scripted upstream."""
    return {"model": MODEL, "messages": [{"role": "user", "content": f"SCRIPT {json.dumps(order)}"}], **fields}


def unknown_fields(value, path=""):
    """Paths of fields outside the SDK's types, at any depth."""
    if isinstance(value, list):
        return [found for item in value for found in unknown_fields(item, f"{path}[]")]
    if not isinstance(value, openai.BaseModel):
        return []
    own = [f"{path}.{name}" for name in value.model_extra or {} if name not in KNOWN_EXTRAS]
    return own + [found for name in type(value).model_fields for found in unknown_fields(getattr(value, name), f"{path}.{name}")]


def check_calls(calls, wanted):
    assert [[call.function.name, json.loads(call.function.arguments)] for call in calls] == wanted, calls
    ids = [call.id for call in calls]
    assert len(set(ids)) == len(ids) and all(CALL_ID.fullmatch(call_id) for call_id in ids), ids


def check_completion(completion, calls=(), content=None, finish="stop", reasoning=None):
    assert unknown_fields(completion) == [], unknown_fields(completion)
    choice = completion.choices[0]
    assert choice.finish_reason == finish, choice.finish_reason
    check_calls(choice.message.tool_calls or [], list(calls))
    assert (choice.message.content or None) == content, choice.message.content
    if reasoning:
        assert choice.message.model_extra.get("reasoning_content") == reasoning, choice.message
    assert completion.usage.total_tokens == 110, completion.usage


def json_tools():
    order = {"calls": [READ, STAT], "reasoning": "Two files."}
    completion = client.chat.completions.create(**request(order, tools=TOOLS))
    check_completion(completion, [READ, STAT], finish="tool_calls", reasoning="Two files.")


def json_plain():
    check_completion(client.chat.completions.create(**request({"text": "Grüße"})), content="Grüße")


def accumulate(**request_fields):
    """The SDK's own accumulator: the final completion of a stream."""
    with client.chat.completions.stream(**request_fields, stream_options={"include_usage": True}) as stream:
        for _event in stream:
            pass
        return stream.get_final_completion()


def stream_tools():
    order = {"calls": [READ, STAT], "text": "I look.", "finish": "stop"}
    check_completion(accumulate(**request(order, tools=TOOLS)), [READ, STAT], content="I look.", finish="tool_calls")


def stream_tools_after_silence():
    order = {"calls": [READ], "silent": 1}
    check_completion(accumulate(**request(order, tools=TOOLS)), [READ], finish="tool_calls")


def stream_leaked_calls():
    for form in ("tools", "bare", "lines"):
        calls = [READ] if form == "bare" else [READ, STAT]
        check_completion(accumulate(**request({"calls": calls, "form": form}, tools=TOOLS)), calls, finish="tool_calls")


def stream_plain():
    check_completion(accumulate(**request({"text": "one two three"})), content="one two three")


def stream_plain_after_silence():
    check_completion(accumulate(**request({"text": "one two three", "silent": 1})), content="one two three")


def stream_choices():
    completion = accumulate(**request({"calls": [READ]}, tools=TOOLS, n=3))
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    check_calls([call for choice in completion.choices for call in choice.message.tool_calls], [READ] * 3)
    assert {choice.finish_reason for choice in completion.choices} == {"tool_calls"}


def raw_chunks(**request_fields):
    return list(client.chat.completions.create(stream=True, **request_fields))


def stream_order():
    """Role first, reasoning before content before calls, one finish, usage last and only because it was asked for."""
    order = {"calls": [READ], "text": "I look.", "reasoning": "One file."}
    chunks = raw_chunks(**request(order, tools=TOOLS, stream_options={"include_usage": True}))
    assert unknown_fields(chunks) == [], unknown_fields(chunks)
    assert len({chunk.id for chunk in chunks}) == 1 and {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    kinds = [kind for delta in deltas if (kind := kind_of(delta))]
    assert kinds == sorted(kinds), kinds
    finishes = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert finishes == ["tool_calls"] and chunks[-1].choices == [] and chunks[-1].usage.total_tokens == 110
    unasked = raw_chunks(**request(order, tools=TOOLS))
    assert all(chunk.choices and chunk.usage is None for chunk in unasked)


def kind_of(delta):
    """1 reasoning, 2 content, 3 call: the order in which they have to come; 0 for none of them."""
    if delta.tool_calls:
        return 3
    if delta.content:
        return 2
    return 1 if (delta.model_extra or {}).get("reasoning_content") else 0


def tool_loop():
    """The whole round: the ids that respool gave come back and pair up (the upstream refuses them otherwise)."""
    first = request({"calls": [READ, STAT]}, tools=TOOLS)
    answer = client.chat.completions.create(**first).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": f"result {at}"} for at, call in enumerate(answer.tool_calls)]
    messages = [*first["messages"], answer.model_dump(exclude_none=True), *results]
    check_completion(client.chat.completions.create(model=MODEL, tools=TOOLS, messages=messages), content="TOOL SAID result 0 | result 1")


def agent_answers(**fields):
    """An agent asks, reads the file itself, and answers; the client declares no tool and sees no call."""
    return {**request({"calls": [READ]}, **fields), "model": AGENT}


def check_agent(completion, content):
    assert unknown_fields(completion) == [], unknown_fields(completion)
    choice = completion.choices[0]
    assert (choice.finish_reason, choice.message.tool_calls or []) == ("stop", []), choice
    assert choice.message.content == content, choice.message.content
    assert completion.usage.total_tokens == 220, completion.usage


def agent():
    check_agent(client.chat.completions.create(**agent_answers()), "TOOL SAID hello from a.txt")
    streamed = accumulate(**agent_answers())
    check_agent(streamed, "TOOL SAID hello from a.txt")
    assert "[read: a.txt] ok" in streamed.choices[0].message.model_extra["reasoning_content"], streamed


def agent_with_tools_of_both():
    """`read` runs there, `stat` leaves; with its result the same run goes on."""
    first = {**request({"calls": [READ, STAT]}, tools=TOOLS[1:]), "model": AGENT}
    answer = accumulate(**first)
    check_calls(answer.choices[0].message.tool_calls, [STAT])
    result = {"role": "tool", "tool_call_id": answer.choices[0].message.tool_calls[0].id, "content": "12 bytes"}
    messages = [*first["messages"], answer.choices[0].message.model_dump(exclude_none=True), result]
    last = client.chat.completions.create(model=AGENT, tools=TOOLS[1:], messages=messages)
    assert last.choices[0].message.content == "TOOL SAID hello from a.txt | 12 bytes", last


def length():
    """A text that the token limit cut (the SDK's stream helper raises at that, so chunks are read here)."""
    order = {"text": "cut off", "finish": "length"}
    check_completion(client.chat.completions.create(**request(order, tools=TOOLS)), content="cut off", finish="length")
    choices = [chunk.choices[0] for chunk in raw_chunks(**request(order, tools=TOOLS))]
    assert "".join(choice.delta.content or "" for choice in choices) == "cut off" and choices[-1].finish_reason == "length"


def raises(kind, call, says):
    try:
        call()
    except kind as error:
        assert says.lower() in str(error).lower(), error
        return error
    raise AssertionError(f"no {kind.__name__}")


def status_errors():
    for stream in (False, True):
        for tools in ({}, {"tools": TOOLS}):
            send = lambda order, **more: lambda: client.chat.completions.create(stream=stream, **{**request(order), **tools, **more})
            raises(openai.BadRequestError, send({"fail": {"status": 400, "message": "temperature must be non-negative"}}), "temperature")
            raises(openai.NotFoundError, send({}, model="nobody"), "does not exist")
            refused = raises(openai.UnprocessableEntityError, send({"fail": {"status": 401}}), "key")
            assert refused.body["type"] and isinstance(refused.body.get("code"), (str, type(None))), refused.body
            overflow = "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input tokens."
            error = raises(openai.BadRequestError, send({"fail": {"status": 400, "message": overflow}}), "maximum context length")
            assert error.code == "context_length_exceeded", error.body


def stream_errors():
    """After the head: an error event, which the SDK raises."""
    for fields in ({"tools": TOOLS}, {}):
        order = {"silent": 1, "fail": {"status": 400, "message": "too late to say so"}}
        raises(openai.APIError, lambda: raw_chunks(**request(order, **fields)), "too late")
    raises(openai.APIError, lambda: raw_chunks(**request({"silent": 1, "fail": "cut"}, tools=TOOLS)), "")


def models():
    assert {model.id for model in client.models.list()} == {MODEL, AGENT}
    assert client.models.retrieve(MODEL).id == MODEL
    raises(openai.NotFoundError, lambda: client.models.retrieve("nobody"), "nobody")


TESTS = [json_tools, json_plain, stream_tools, stream_tools_after_silence, stream_leaked_calls, stream_plain,
         stream_plain_after_silence, stream_choices, stream_order, tool_loop, agent, agent_with_tools_of_both, length, status_errors, stream_errors, models]


def main():
    failed = 0
    for test in TESTS:
        started = time.monotonic()
        try:
            test()
            verdict = "ok  "
        except Exception as error:  # the next test must run all the same
            failed += 1
            line = error.__traceback__.tb_next.tb_lineno if error.__traceback__.tb_next else 0
            verdict = f"FAIL {type(error).__name__} (line {line}): {error}\n    "
        print(f"{verdict} python {test.__name__} {time.monotonic() - started:.1f} s", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
