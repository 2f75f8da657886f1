"""usage: server.py DIR TEMPLATE PORT

Serves chat completions as SGLang does: the request models, the parsers of tool calls and what writes replies are those of
its package (DIR, made by setup.sh; `serving.py`), so each refusal of a request is its own, in its own words. The prompt is
rendered with a real chat template; what stands between the request models and the prompt is written here, as
`serving_chat.py` of 0.5.23 does it. No model: each answer is one sentence, or that of the model of this name in the file
ANSWERS, a JSON object of texts. An answer of a model whose name begins with `cut-` ends at the token limit. PARSER names
SGLang's parser of tool calls.
"""
import datetime
import json
import os
import pathlib
import sys

import jinja2
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

import serving

DIR, TEMPLATE, PORT = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
ANSWER = "It is done, and nothing more."
ANSWERS = json.loads(pathlib.Path(os.environ["ANSWERS"]).read_text()) if "ANSWERS" in os.environ else {}
PARSER = os.environ.get("PARSER")

chat_api = serving.load(DIR / "sglang-package")
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
    return {"version": "0.5.23", "max_running_requests": 8, "tool_call_parser": PARSER, "model_path": TEMPLATE}


@app.post("/v1/chat/completions")
async def chat(request: ChatCompletionRequest):
    try:
        render(request)
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        return refusal(str(error))
    except RecursionError as error:
        words = f"Internal server error: {error}"
        return JSONResponse(ErrorResponse(message=words, type="InternalServerError", code=500).model_dump(), 500)
    if any(part.type == "image_url" for message in request.messages if isinstance(message.content, list)
           for part in message.content):
        return refusal("image input is not supported for this model")
    reason = "length" if request.model.startswith("cut-") else "stop"
    return await serving.reply(chat_api, request, ANSWERS.get(request.model, ANSWER), reason, PARSER)


uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning")
