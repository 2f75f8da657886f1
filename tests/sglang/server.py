"""usage: server.py DIR TEMPLATE PORT

Serves chat completions as SGLang's front end takes them: the request models are those of its package (DIR, made by
setup.sh), so each refusal of a request is its own, in its own words. The prompt is rendered with a real chat template;
what stands between the two is written here, as `serving_chat.py` of 0.5.23 does it. No model: each answer is one sentence.
"""
import datetime
import json
import pathlib
import sys
import types

import jinja2
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

DIR, TEMPLATE, PORT = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
ANSWER = "It is done, and nothing more."

# The packages' own __init__ files would load torch.
for name in ["sglang", "sglang.srt", "sglang.srt.entrypoints", "sglang.srt.entrypoints.openai", "sglang.srt.utils"]:
    package = types.ModuleType(name)
    package.__path__ = [str(DIR / "sglang-package" / name.replace(".", "/"))]
    sys.modules[name] = package
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, ErrorResponse  # noqa: E402


def raise_exception(message):
    raise jinja2.TemplateError(message)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
environment.globals |= {"raise_exception": raise_exception,
                        "strftime_now": lambda form: datetime.datetime.now().strftime(form)}
source = (DIR / "templates" / f"{TEMPLATE}.jinja").read_text()
template = environment.from_string(source)
takes_parts = "content is string" in source or "content is iterable" in source
app = FastAPI()


def prepared(message):
    """A message as a template gets it."""
    content = message["content"] if message.get("content") is not None else ""
    if isinstance(content, list) and not takes_parts:
        content = " ".join(part["text"] for part in content if part["type"] == "text")
    for call in message.get("tool_calls") or []:
        arguments = call["function"]["arguments"]
        try:
            call["function"]["arguments"] = json.loads(arguments) if isinstance(arguments, str) else arguments
        except ValueError:
            raise ValueError("Assistant tool call function.arguments must be valid JSON.")
    return {key: value for key, value in message.items() if value is not None} | {"content": content}


def render(request):
    messages = [prepared(message.model_dump()) for message in request.messages]
    tools = [tool.model_dump() for tool in request.tools] if request.tools else None
    options = request.chat_template_kwargs or {}
    if request.reasoning_effort is not None:
        options = {"reasoning_effort": request.reasoning_effort, **options}

    def rendered(tools):
        return template.render(messages=messages, tools=tools, add_generation_prompt=True, bos_token="", eos_token="", **options)
    try:
        return rendered(tools)
    except Exception:
        # The other form of tools, as some templates want them.
        return rendered(tools and [tool["function"] for tool in tools])


def refusal(message, kind="BadRequestError"):
    return JSONResponse(ErrorResponse(message=message, type=kind, code=400).model_dump(), 400)


@app.exception_handler(RequestValidationError)
async def refuse_invalid(request: Request, error: RequestValidationError):
    return refusal(f"{error} {error.errors()}", "Bad Request")


@app.get("/health")
async def health():
    return {}


@app.get("/v1/models")
async def models():
    return {"object": "list", "data": [{"id": "tiny", "object": "model", "owned_by": "sglang", "max_model_len": 65536}]}


@app.get("/get_server_info")
async def server_info():
    return {"version": "0.5.23", "max_running_requests": 8, "tool_call_parser": None, "model_path": TEMPLATE}


@app.post("/v1/chat/completions")
async def chat(request: ChatCompletionRequest):
    try:
        prompt = render(request)
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        return refusal(str(error))
    if any(part.type == "image_url" for message in request.messages if isinstance(message.content, list)
           for part in message.content):
        return refusal("image input is not supported for this model")
    head = {"id": "1", "created": 1, "model": "tiny"}
    counts = {"prompt_tokens": len(prompt) // 4, "completion_tokens": 7, "total_tokens": len(prompt) // 4 + 7}
    message = {"role": "assistant", "content": ANSWER}
    if not request.stream:
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {**head, "object": "chat.completion", "choices": [choice], "usage": counts}
    choices = [{"index": 0, "delta": message, "finish_reason": None}], [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    chunks = [{**head, "object": "chat.completion.chunk", "choices": choice} for choice in choices]
    frames = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"]
    return StreamingResponse(iter(frames), media_type="text/event-stream")


uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning")
