"""What vLLM's unit tests import as `vllm`: functions of the same names that ask a running respool.

A conversion sends its input through respool and returns what the model server received; a reply's conversion makes the model server give that
reply and returns what the client received. So the tests' expectations hold for respool's wires. What has no such meaning (templates, renderers,
parsers of the engine) is a `Missing` whose use skips the test.
"""
import importlib.abc
import importlib.machinery
import json
import re
import sys
import types

import httpx
import pytest
from pydantic import ValidationError
from pydantic_core import PydanticCustomError
from server import KEY, RemoteOpenAIServer


# False while pytest collects the tests.
tests_run = False


class Missing(type):
    """A class of the engine that no client sees."""

    def __call__(cls, *_, **__):
        if not tests_run:
            return cls
        pytest.skip(f"{cls.__name__} is a part of vLLM's engine")

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return missing(f"{cls.__name__}.{name}")

    def __or__(cls, other):
        return cls


def missing(name):
    return Missing(name, (), {})


class Loose:
    """A record of any fields, as vLLM's pydantic models are used in these tests."""

    def __init__(self, **fields):
        self.__dict__.update(fields)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def __eq__(self, other):
        return plain(self) == plain(other)

    def get(self, name, default=None):
        return self.__dict__.get(name, default)

    def model_dump(self, **_):
        return plain(self)


def plain(value):
    if isinstance(value, Loose):
        return {key: plain(one) for key, one in value.__dict__.items()}
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if hasattr(value, "model_dump"):
        return value.model_dump(exclude_none=True, by_alias=True)
    if hasattr(value, "__next__"):
        return [plain(one) for one in value]
    return value


def loose(value):
    if isinstance(value, dict):
        return Loose(**{key: loose(one) for key, one in value.items()})
    if isinstance(value, list):
        return [loose(one) for one in value]
    return value


class Refused(ValueError):
    """Respool answered with a status of 400 to 499."""

    def __init__(self, reply):
        self.reply, self.error = reply, reply.json()["error"]
        self.parameter = self.error.get("param")
        super().__init__(self.error["message"])


_server = None


def server():
    global _server
    if _server is None:
        _server = RemoteOpenAIServer("test-model")
    return _server


def stop():
    if _server is not None:
        _server.__exit__()


BROKEN = {"broken": True}


def without_own_words(text):
    """What respool adds to an error of the server: who failed, how often it was asked, and the request's id."""
    text = re.sub(r', ?"request_id": ?"[^"]*"', "", text)
    text = re.sub(r"upstream `[^`]*` failed: ", "", text)
    return re.sub(r" \((asked \d+ times|respool waited)[^)]*\)", "", text)


def ask(path, body, reply=None, any_status=False):
    """Sends a request through respool; returns what the client got and what the model server got."""
    upstream = server().upstream
    upstream.requests.clear()
    upstream.fixed = reply
    try:
        got = httpx.post(server().url_for(path), json=plain(body), headers={"x-api-key": KEY, "anthropic-version": "2023-06-01"}, timeout=60)
    finally:
        upstream.fixed = None
    if 400 <= got.status_code < 500:
        raise Refused(got)
    assert any_status or got.status_code == 200, f"{got.status_code}: {got.text}"
    return got, (upstream.requests[0] if upstream.requests else {})


def validated(path, body):
    """As `ask`, and a refusal is pydantic's error, which vLLM's tests expect."""
    try:
        return ask(path, body)
    except Refused as refused:
        raise validation_error(refused) from refused


def validation_error(refused):
    detail = PydanticCustomError("refused", "{message}", {"message": str(refused)})
    return ValidationError.from_exception_data("respool", [{"type": detail, "loc": (refused.parameter or "request",), "input": None}])


# Chat completions: replies of the model server.

def deltas_of(message):
    delta = {key: value for key, value in plain(message).items() if value is not None}
    for index, call in enumerate(delta.get("tool_calls") or []):
        call.update(index=index, id=call.get("id") or f"call_{index}", type="function")
    return delta


def chunk_of(value):
    value = plain(value)
    if "error" in value:
        return value
    for choice in value.get("choices", []):
        choice["delta"] = {key: one for key, one in choice["delta"].items() if one is not None}
    return value


def chunks_of_completion(response):
    value = plain(response)
    for choice in value["choices"]:
        choice["delta"] = deltas_of(choice.pop("message"))
    return [value | {"usage": None}, value | {"choices": []}]


def tools_called(chunks):
    calls = [call for one in chunks for choice in one.get("choices") or [] for call in choice["delta"].get("tool_calls") or []]
    return sorted({call["function"]["name"] for call in calls if call["function"].get("name")})


# Anthropic's Messages.

def signed(thinking):
    """The signature under which respool lets a client have this reasoning."""
    chunks = [{"choices": [{"index": 0, "delta": {"reasoning": thinking, "content": "Hello"}, "finish_reason": "stop"}]}]
    content = ask("v1/messages", messages_body([], thinking={"type": "adaptive"}), chunks)[0].json()["content"]
    return next(block["signature"] for block in content if block["type"] == "thinking")


def with_signatures(fields):
    """What the tests' client sends back came from the server under test."""
    for message in fields.get("messages") or []:
        for block in message["content"] if isinstance(message.get("content"), list) else []:
            if block.get("type") == "thinking" and block.get("thinking"):
                block["signature"] = signed(block["thinking"])
    return fields


class AnthropicMessagesRequest(Loose):
    path = "v1/messages"

    def __init__(self, **fields):
        _, received = validated(self.path, with_signatures(fields))
        super().__init__(**fields)
        self.__dict__["_received"] = received


class AnthropicCountTokensRequest(AnthropicMessagesRequest):
    path = "v1/messages/count_tokens"


class ChatRequest(Loose):
    """The chat request that the model server received, with vLLM's defaults."""

    def __init__(self, body):
        super().__init__(**body)
        self.messages = body.get("messages")
        self.tools = loose(body["tools"]) if body.get("tools") else None
        self.include_reasoning = body.get("include_reasoning", True)
        self.kv_transfer_params = body.get("kv_transfer_params")

    def to_sampling_params(self, *_, **__):
        return sampling_params(self.__dict__)


def sampling_params(body):
    defaults = {"min_p": 0.0, "repetition_penalty": 1.0, "stop": [], "top_k": 0}
    fields = defaults | {key: value for key, value in body.items() if value is not None}
    stop = fields["stop"]
    extra = dict(body.get("vllm_xargs") or {})
    if body.get("kv_transfer_params"):
        extra["kv_transfer_params"] = body["kv_transfer_params"]
    schema = (body.get("response_format") or {}).get("json_schema", {}).get("schema")
    structured = body.get("structured_outputs") or {}
    if body.get("response_format"):
        structured = {"json": schema, "json_object": body["response_format"]["type"] == "json_object" or None}
    fields.update(stop=[stop] if isinstance(stop, str) else stop, extra_args=extra, max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
                  structured_outputs=Loose(**structured) if structured else None, logprobs=(body.get("top_logprobs") or 0) if body.get("logprobs") else None)
    return Loose(**fields)


def messages_body(chunks, **more):
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in tools_called(chunks)]
    body = {"model": "test-model", "max_tokens": 128, "messages": [{"role": "user", "content": "Hello"}]} | more
    return body | ({"tools": tools} if tools else {})


class AnthropicServingMessages:
    @staticmethod
    def to_chat_completion_request(request, **options):
        if options:
            pytest.skip("the effort of disabled thinking is an option of vLLM's command line")
        return ChatRequest(request._received)

    @staticmethod
    def _convert_image_source_to_url(source):
        _, received = ask("v1/messages", messages_body([], messages=[{"role": "user", "content": [{"type": "image", "source": source}]}]))
        return received["messages"][-1]["content"][0]["image_url"]["url"]

    async def message_stream_converter(self, source):
        chunks = []
        try:
            async for one in source:
                chunks.append(chunk_of(one))
        except Exception:  # noqa: BLE001: whatever it is, the server breaks off
            chunks.append(BROKEN)
        try:
            got, _ = ask("v1/messages", messages_body(chunks, stream=True, thinking={"type": "adaptive"}), chunks, any_status=True)
        except Refused as refused:
            got = refused.reply
        # Before the stream begins, an error is the whole answer.
        frames = got.text.split("\n\n") if got.status_code == 200 else [f"event: error\ndata: {got.text}"]
        for frame in frames:
            if frame.strip() and "event: ping" not in frame:
                yield without_own_words(frame) + "\n\n"

    def messages_full_converter(self, response):
        chunks = chunks_of_completion(response)
        return loose(ask("v1/messages", messages_body(chunks), chunks)[0].json())

    create_messages = count_tokens = None

    @staticmethod
    def _detect_merge_inline_system(_):
        pytest.skip("a rule for the templates of vLLM's models")

    _should_merge_inline_system = _detect_merge_inline_system


def _build_anthropic_usage(usage):
    chunks = [chunk_of(Loose(choices=[{"index": 0, "delta": {"content": "Hello"}, "finish_reason": "stop"}])), {"choices": [], "usage": plain(usage)}]
    return loose(ask("v1/messages", messages_body([]), chunks)[0].json()["usage"])


def create_error_response(error):
    return Loose(error=Loose(message=str(error), type="BadRequestError", param=None, code=400))


def translate_error_response(response):
    """The error with which the model server answers, as the client gets it."""
    error = plain(response)
    status = error["error"]["code"]
    upstream = server().upstream
    upstream.fixed = [error]
    try:
        got = httpx.post(server().url_for("v1/messages"), json=messages_body([]), headers={"x-api-key": KEY}, timeout=120)
    finally:
        upstream.fixed = None
    return Loose(status_code=got.status_code, body=without_own_words(got.text), asked=status)


# OpenAI's Responses.

class ResponsesRequest(Loose):
    def __init__(self, **fields):
        from openai.types.responses import ResponseFunctionToolCall
        fields.setdefault("model", "test-model")
        if isinstance(fields.get("input"), list) is False and hasattr(fields.get("input"), "__next__"):
            fields["input"] = list(fields["input"])
        got, received = validated("v1/responses", {"store": False} | fields)
        super().__init__(**fields)
        # As the client reads them in the response.
        echoed = got.json()
        self.__dict__.update({key: loose(echoed[key]) for key in ("tool_choice", "parallel_tool_calls", "prompt_cache_options")})
        if isinstance(fields["input"], list):
            is_call = lambda item: isinstance(item, dict) and item.get("type") == "function_call"
            self.input = [ResponseFunctionToolCall(**item) if is_call(item) else item for item in fields["input"]]
        self.__dict__.update(_received=received, _response=got.json())

    @classmethod
    def model_validate(cls, fields):
        return cls(**fields)

    def to_sampling_params(self, *_, **__):
        return sampling_params(self._received)


class ResponseTextConfig(Loose):
    @classmethod
    def model_validate(cls, fields):
        return cls(**fields)


class ResponsesResponse(Loose):
    @classmethod
    def from_request(cls, request, **_):
        return cls(**request._response)


def received_messages(items, **more):
    try:
        return ask("v1/responses", {"model": "test-model", "input": items, "store": False} | more)[1]["messages"]
    except Refused as refused:
        raise VLLMValidationError(str(refused), parameter=refused.parameter) from refused


def construct_chat_messages_with_tool_call(items):
    return received_messages(items)


def _construct_message_from_response_item(item):
    # A model answers what a user says, so somebody has to say something.
    return received_messages([item, {"role": "user", "content": "Go on."}])[0]


def construct_input_messages(*, request_instructions=None, request_input, prev_msg=None):
    more = {"instructions": request_instructions} if request_instructions else {}
    if prev_msg:
        system, user, assistant = prev_msg
        before = {"model": "test-model", "instructions": system["content"], "input": user["content"]}
        said = [chunk_of({"choices": [{"index": 0, "delta": {"content": assistant["content"]}, "finish_reason": "stop"}]})]
        more["previous_response_id"] = ask("v1/responses", before, said)[0].json()["id"]
    return received_messages(request_input, **more)


def build_response_output_items(*, reasoning, content, tool_calls, tools=None, finish_reason=None, **_):
    calls = [{"index": n, "id": call.get("id") or f"call_{n}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for n, call in enumerate(tool_calls)]
    delta = {key: value for key, value in {"reasoning": reasoning, "content": content, "tool_calls": calls}.items() if value}
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason or ("tool_calls" if calls else "stop")}]}]
    declared = tools or [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in tools_called(chunks)]
    body = {"model": "test-model", "input": "Hello", "store": False, "tools": declared, "max_output_tokens": 100}
    from openai.types.responses import Response
    return Response.model_validate(ask("v1/responses", body, chunks)[0].json()).output


def decode_custom_tool_input(arguments):
    tool = {"type": "custom", "name": "emit", "format": {"type": "text"}}
    (item,) = build_response_output_items(reasoning=None, content=None, tool_calls=[Loose(name="emit", arguments=arguments)], tools=[tool])
    return item.input


def decode_custom_tool_input_prefix(_):
    pytest.skip("respool writes a custom tool's input when the call is whole")


def should_continue_final_message(items):
    if isinstance(items, str) or not items:
        return False
    _, received = ask("v1/responses", {"model": "test-model", "input": items, "store": False})
    return bool(received.get("continue_final_message"))


class AnyRefusal(type):
    """Respool refuses as pydantic does, or with a 400: both are a refusal."""

    def __instancecheck__(cls, instance):
        return isinstance(instance, ValidationError) or super().__instancecheck__(instance)


class VLLMValidationError(ValueError, metaclass=AnyRefusal):
    def __init__(self, message, parameter=None, **_):
        super().__init__(message)
        self.parameter = parameter


def encode_image_url(_):
    return "data:image/png;base64,iVBORw0KGgo="


# The modules.

KNOWN = {name: value for name, value in globals().items() if name in {
    "AnthropicMessagesRequest", "AnthropicCountTokensRequest", "AnthropicServingMessages", "_build_anthropic_usage", "create_error_response",
    "translate_error_response", "ResponsesRequest", "construct_chat_messages_with_tool_call", "_construct_message_from_response_item",
    "construct_input_messages", "ResponsesResponse", "ResponseTextConfig", "build_response_output_items", "decode_custom_tool_input", "decode_custom_tool_input_prefix",
    "should_continue_final_message", "VLLMValidationError", "encode_image_url"}}
RECORDS = ["DeltaFunctionCall", "DeltaMessage", "DeltaToolCall", "FunctionCall", "ToolCall", "ChatCompletionResponse", "ChatCompletionResponseChoice",
           "ChatCompletionResponseStreamChoice", "ChatCompletionStreamResponse", "ChatMessage", "PromptTokenUsageInfo", "UsageInfo", "ErrorInfo",
           "ErrorResponse", "StructuredOutputsParams"]
KNOWN |= {name: type(name, (Loose,), {}) for name in RECORDS}


# Tests of the engine that lend other tests their classes.
HELPERS = ["tests.entrypoints.openai.chat_completion.test_serving_chat"]


class Module(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return KNOWN.get(name) or missing(name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("vllm", "torch") or name in HELPERS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        if module.__name__ == "vllm.entrypoints.openai.responses.utils":
            import logging
            module.logger = logging.getLogger("vllm")


def install():
    sys.meta_path.insert(0, Finder())
