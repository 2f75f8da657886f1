"""The official Python SDKs of OpenAI (Responses) and Anthropic (Messages) read what respool makes of a vLLM-like upstream that knows
chat completions only. Started by run.sh, which sets BASE_URL.

Every stream is read with the SDK's own accumulator, and must give what the JSON form gives. Each object and event is held to the
SDK's types, as its own tests hold those of the real API (`_strict_response_validation`).
"""

import json
import os
import sys
import time

import anthropic
import openai

MODEL = "gpt-oss-120b"
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], "additionalProperties": False}
FUNCTIONS = [{"type": "function", "name": name, "description": f"{name} a file", "parameters": PARAMETERS, "strict": True} for name in ("read", "stat")]
TOOLS = [{"name": name, "description": f"{name} a file", "input_schema": PARAMETERS} for name in ("read", "stat")]
READ = ["read", {"path": "a.txt"}]
STAT = ["stat", {"path": "ä.txt"}]
OVERFLOW = "This model's maximum context length is 2048 tokens. However, your request has 5000 input tokens. Please reduce the length of the input messages."

URL = os.environ["BASE_URL"]
responses = openai.OpenAI(base_url=URL, api_key="sk-test", max_retries=0, timeout=30, _strict_response_validation=True).responses
messages = anthropic.Anthropic(base_url=URL.removesuffix("/v1"), api_key="sk-test", max_retries=0, timeout=30, _strict_response_validation=True).messages


def order(order):
    return f"SCRIPT {json.dumps(order)}"


def streamed_response(**fields):
    with responses.stream(model=MODEL, **fields) as stream:
        numbers = [event.sequence_number for event in stream]
        assert numbers == list(range(len(numbers))), numbers
        return stream.get_final_response()


def told_response(response):
    calls = [[item.name, json.loads(item.arguments)] for item in response.output if item.type == "function_call"]
    reasoning = "".join(part.text for item in response.output if item.type == "reasoning" for part in item.content or [])
    return response.status, response.output_text, calls, reasoning, response.usage.total_tokens


def both_responses(script, **fields):
    stream = told_response(streamed_response(input=order(script), **fields))
    assert stream == told_response(responses.create(model=MODEL, input=order(script), **fields)), stream
    return stream


def response_texts_and_calls():
    script = {"calls": [READ, STAT], "text": "I look.", "reasoning": "Two files."}
    assert both_responses(script, tools=FUNCTIONS) == ("completed", "I look.", [READ, STAT], "Two files.", 110)
    assert both_responses({"text": "Grüße"})[:3] == ("completed", "Grüße", [])
    assert both_responses({"calls": [READ], "form": "tools"}, tools=FUNCTIONS)[2] == [READ]
    assert both_responses({"calls": [READ], "silent": 1}, tools=FUNCTIONS)[2] == [READ]
    assert both_responses({"text": "one two three", "silent": 1})[1] == "one two three"


def response_tool_loop():
    first = streamed_response(input=order({"calls": [READ, STAT]}), tools=FUNCTIONS, include=["reasoning.encrypted_content"], store=False)
    calls = [item for item in first.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": f"result {at}"} for at, call in enumerate(calls)]
    history = [{"role": "user", "content": order({"calls": [READ, STAT]})}, *[item.model_dump(exclude_none=True) for item in first.output], *results]
    assert streamed_response(input=history, tools=FUNCTIONS).output_text == "TOOL SAID result 0 | result 1"


def response_errors():
    for stream in (False, True):
        send = lambda script, **more: lambda: responses.create(**{"model": MODEL, "input": order(script), "stream": stream, **more})
        raises(openai.BadRequestError, send({"fail": {"status": 400, "message": "temperature must be non-negative"}}), "temperature")
        raises(openai.NotFoundError, send({}, model="nobody"), "does not exist")
        raises(openai.BadRequestError, send({}, previous_response_id="resp_1"), "resp_1")
        assert raises(openai.BadRequestError, send({"fail": {"status": 400, "message": OVERFLOW}}), "maximum context").code == "context_length_exceeded"
    events = list(responses.create(model=MODEL, input=order({"silent": 1, "fail": {"status": 400, "message": "too late"}}), stream=True))
    assert events[-1].type == "response.failed" and "too late" in events[-1].response.error.message, events[-1]


def streamed_message(**fields):
    with messages.stream(model=MODEL, max_tokens=1000, **fields) as stream:
        return stream.get_final_message()


def told_message(message):
    calls = [[block.name, block.input] for block in message.content if block.type == "tool_use"]
    text = "".join(block.text for block in message.content if block.type == "text")
    thinking = "".join(block.thinking for block in message.content if block.type == "thinking")
    return message.stop_reason, text, calls, thinking, message.usage.input_tokens + message.usage.output_tokens


def both_messages(script, **fields):
    fields = {"messages": [{"role": "user", "content": order(script)}], **fields}
    stream = told_message(streamed_message(**fields))
    assert stream == told_message(messages.create(model=MODEL, max_tokens=1000, **fields)), stream
    return stream


def message_texts_and_calls():
    script = {"calls": [READ, STAT], "text": "I look.", "reasoning": "Two files."}
    thinking = {"type": "enabled", "budget_tokens": 1024}
    assert both_messages(script, tools=TOOLS, thinking=thinking) == ("tool_use", "I look.", [READ, STAT], "Two files.", 110)
    assert both_messages(script, tools=TOOLS)[3] == ""
    assert both_messages({"text": "Grüße"})[:3] == ("end_turn", "Grüße", [])
    assert both_messages({"calls": [READ], "form": "tools"}, tools=TOOLS)[2] == [READ]
    assert both_messages({"calls": [READ], "silent": 1}, tools=TOOLS)[2] == [READ]
    assert both_messages({"text": "cut off", "finish": "length"}, tools=TOOLS)[:2] == ("max_tokens", "cut off")


def message_tool_loop():
    first = [{"role": "user", "content": order({"calls": [READ, STAT], "reasoning": "Two files."})}]
    answer = streamed_message(messages=first, tools=TOOLS, thinking={"type": "enabled", "budget_tokens": 1024})
    calls = [block for block in answer.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": f"result {at}"} for at, call in enumerate(calls)]
    history = [*first, {"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    assert streamed_message(messages=history, tools=TOOLS).content[0].text == "TOOL SAID result 0 | result 1"


def message_errors():
    for stream in (False, True):
        send = lambda script, **more: lambda: messages.create(**{"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": order(script)}], "stream": stream, **more})
        raises(anthropic.BadRequestError, send({"fail": {"status": 400, "message": "temperature must be non-negative"}}), "temperature")
        raises(anthropic.NotFoundError, send({}, model="nobody"), "does not exist")
        error = raises(anthropic.BadRequestError, send({"fail": {"status": 400, "message": OVERFLOW}}), "prompt is too long: 5000 tokens > 2048 maximum")
        assert error.body["error"]["type"] == "invalid_request_error" and error.request_id, error
    late = {"silent": 1, "fail": {"status": 400, "message": "too late"}}
    raises(anthropic.APIStatusError, lambda: list(messages.create(model=MODEL, max_tokens=9, messages=[{"role": "user", "content": order(late)}], stream=True)), "too late")


def message_tokens():
    assert messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "hi"}], tools=TOOLS).input_tokens > 10


def raises(kind, call, says):
    try:
        answer = call()
        if not isinstance(answer, (list, dict)) and hasattr(answer, "__iter__"):
            list(answer)
    except kind as error:
        assert says.lower() in str(error).lower(), error
        return error
    raise AssertionError(f"no {kind.__name__}")


TESTS = [response_texts_and_calls, response_tool_loop, response_errors, message_texts_and_calls, message_tool_loop, message_errors, message_tokens]


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
