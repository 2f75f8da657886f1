"""Writes the request bodies. A MOCK- word in the user's text tells the mock what to answer."""

import json

from .lab import FIXTURES

MODEL = "gpt-oss-120b"
OPENCLAW_REQUEST = FIXTURES / "openclaw" / "request-2026.9.6-fulltools.json"


def write_bodies(folder):
    """One file per body in `folder`."""
    bodies = {
        "small": chat("MOCK-SMALL hello"),
        "big": chat("MOCK-BIG hello"),
        "stream_200": chat("MOCK-N-200 hello", stream=True),
        "stream_200_paced": chat("MOCK-N-200 MOCK-D-10 hello", stream=True),
        "stream_100_slow": chat("MOCK-N-100 MOCK-D-50 hello", stream=True),
        "stream_20_slower": chat("MOCK-N-20 MOCK-D-1000 hello", stream=True),
        "tools_small": chat("MOCK-TOOLS weather?", **tool_fields()),
        "leak": chat("MOCK-LEAK weather?", **tool_fields()),
        "tools_openclaw": openclaw_request(),
    }
    for name, body in bodies.items():
        (folder / f"{name}.json").write_text(json.dumps(body, separators=(",", ":")))


def chat(text, stream=False, **fields):
    messages = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": text}]
    return {"model": MODEL, "messages": messages, "max_tokens": 64, "stream": stream, **fields}


def tool_fields():
    """Two of the tools that OpenClaw declares: those that the mock's replies call."""
    tools = [tool("web_search", "query"), tool("read", "path")]
    return {"tools": tools, "stream": True, "stream_options": {"include_usage": True}}


def tool(name, argument):
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": f"{name} tool", "parameters": parameters}}


def openclaw_request():
    """A recorded OpenClaw request with all its 54 tools, about 148 KB, that asks the mock for tool calls."""
    request = json.loads(OPENCLAW_REQUEST.read_text())
    first_user = next(message for message in request["messages"] if message["role"] == "user")
    first_user["content"] += "\nMOCK-TOOLS"
    return request
