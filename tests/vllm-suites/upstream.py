"""A model server that speaks vLLM's chat completions and answers so that vLLM's own tests can judge the form of a reply.

It calls the tools that a request declares, writes JSON that fits a schema, stops at `max_tokens`, and knows the few facts that the tests ask
for. While `fixed` holds chunks, it answers with those. It keeps every request in `requests`.
"""
import itertools
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = re.compile(r"\s*\S+")


def tokens_of(text):
    return TOKEN.findall(text)


def text_of(content):
    if isinstance(content, list):
        return " ".join(part.get("text", "") for part in content)
    return content or ""


def instance(schema, root=None, path=""):
    """The smallest value that fits a schema; enough for the tests' schemas."""
    root = root or schema
    if "$ref" in schema:
        target = root
        for key in schema["$ref"].removeprefix("#/").split("/"):
            target = target[key]
        return instance(target, root, path)
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return instance(schema["anyOf"][0], root, path)
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: FACTS.get(name) or instance(properties.get(name, {"type": "string"}), root, name) for name in schema.get("required", [])}
    if kind == "array":
        return [instance(schema.get("items", {"type": "string"}), root, path)] * schema.get("minItems", 1)
    return {"string": next(CITIES), "integer": next(NUMBERS), "number": 48.2, "boolean": True, "null": None}[kind]


NUMBERS = itertools.cycle([5, 3, 2])
CITIES = itertools.cycle(["Vienna", "Paris", "Oslo", "Quito"])
# What the tests want to read in the properties of their schemas.
FACTS = {"event_name": "Science Fair", "date": "Friday", "participants": ["Alice", "Bob"]}


def answer(messages):
    """The text of a reply to a conversation that needs no tool."""
    said = [text_of(message.get("content")) for message in messages]
    whole, last = "\n".join(said), said[-1] if said else ""
    text = "Hello there, this is an answer of several words."
    if "Moby Dick" in last or "long story" in last or "350 words" in last:
        text = "Call me Ishmael. Some years ago, " + "never mind how long precisely, " * 80
    elif "13 * 24" in last:
        text = "13 * 24 = 312."
    elif "Multiply the result by 2" in last:
        text = "15 * 2 = 30."
    elif "my name again" in last or "real name again" in last:
        names = re.findall(r"name is (?!not)(\w+)", whole)
        text = f"{names[-1]}." if names else "I do not know."
    elif "tool result" in last or messages and messages[-1].get("role") == "tool":
        text = "It says: " + next((text_of(m.get("content")) for m in reversed(messages) if m.get("role") == "tool"), "nothing")
    return text + (" QED" if "QED" in whole else "")


def uncalled_tool(body):
    """The tool that the model calls next, if it calls one."""
    tools, choice = body.get("tools") or [], body.get("tool_choice", "auto")
    if not tools or choice == "none":
        return None
    if isinstance(choice, dict):
        return next(tool for tool in tools if tool["function"]["name"] == choice["function"]["name"])
    if choice == "auto" and body["messages"][-1].get("role") == "tool" and len(tools) == 1:
        return None
    called = [call["function"]["name"] for message in body["messages"] for call in message.get("tool_calls") or []]
    return next((tool for tool in tools if tool["function"]["name"] not in called), tools[0] if choice == "required" else None)


class Model:
    """What is left of a vLLM engine: a decision on text, calls and reason for a request."""

    def __init__(self, reasoning=True):
        self.reasoning, self.seen = reasoning, set()

    def turn(self, body):
        template = body.get("chat_template_kwargs") or {}
        thinks = self.reasoning and template.get("enable_thinking", True) and body.get("reasoning_effort") != "none"
        reasoning = "I think about what the user wants and how I shall answer." if thinks else ""
        tool, form = uncalled_tool(body), body.get("response_format") or {}
        content, calls = "", []
        if tool:
            arguments = json.dumps(instance(tool["function"].get("parameters") or {"type": "object"}))
            calls = [{"name": tool["function"]["name"], "arguments": arguments}]
            if "and get_time" in text_of(body["messages"][-1].get("content")):
                calls.append({"name": "get_time", "arguments": arguments})
        elif form.get("type") == "json_schema":
            content = json.dumps(instance(form["json_schema"].get("schema") or form["json_schema"].get("json_schema")))
        elif form.get("type") == "json_object":
            content = json.dumps({"answer": 1})
        else:
            content = answer(body["messages"])
        return self.cut(body, reasoning, content, calls)

    @staticmethod
    def cut(body, reasoning, content, calls):
        room = body.get("max_completion_tokens") or body.get("max_tokens") or 10_000
        thought, said = tokens_of(reasoning)[:room], tokens_of(content)
        room -= len(thought)
        finish = "tool_calls" if calls else "stop"
        if calls and room < 15:
            calls, finish = [], "length"
        if len(said) > room or (said and room == 0):
            said, finish = said[:room], "length"
        return thought, said, calls, finish

    def usage(self, body, thought, said, calls):
        prompt = json.dumps([body["messages"], body.get("tools")])
        count = max(len(prompt) // 4, 6)
        cached = count - 1 if prompt in self.seen else 0
        self.seen.add(prompt)
        written = len(thought) + len(said) + 12 * len(calls)
        usage = {"prompt_tokens": count, "completion_tokens": written, "total_tokens": count + written,
                 "prompt_tokens_details": {"cached_tokens": cached, "created_cache_tokens": count - cached - 1}}
        if self.reasoning:
            usage["completion_tokens_details"] = {"reasoning_tokens": len(thought)}
        return usage

    def chunks(self, body):
        thought, said, calls, finish = self.turn(body)
        deltas = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning": piece} for piece in thought]
        parts = [({"content": piece}, piece) for piece in said]
        for index, call in enumerate(calls):
            head = {"index": index, "id": f"chatcmpl-tool-{time.time_ns():x}", "type": "function"}
            deltas.append({"tool_calls": [head | {"function": {"name": call["name"], "arguments": ""}}]})
            middle = len(call["arguments"]) // 2
            deltas += [{"tool_calls": [{"index": index, "function": {"arguments": half}}]} for half in (call["arguments"][:middle], call["arguments"][middle:])]
        yield from (chunk(delta) for delta in deltas)
        top = body.get("top_logprobs") or 0
        for delta, piece in parts:
            yield chunk(delta, logprobs=log_probabilities(piece, top) if body.get("logprobs") else None)
        yield chunk({}, finish)
        yield chunk(None) | {"choices": [], "usage": self.usage(body, thought, said, calls)}


def log_probabilities(piece, top):
    entry = {"token": piece, "logprob": -0.25, "bytes": list(piece.encode())}
    return {"content": [entry | {"top_logprobs": [entry | {"logprob": -0.25 - n} for n in range(top)]}]}


def chunk(delta, finish=None, logprobs=None):
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
    return {"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 1, "model": "scripted", "choices": [choice]}


def completion(chunks):
    """The chunks of a stream as one reply."""
    message = {"role": "assistant", "content": None, "reasoning": None, "tool_calls": []}
    choice, usage, logprobs = {"index": 0, "message": message, "finish_reason": None, "logprobs": None}, None, []
    for one in chunks:
        if "broken" in one:
            return {"error": {"message": "Internal server error", "type": "InternalServerError", "code": 500}}
        if "error" in one:
            return one
        usage = one.get("usage") or usage
        for part in one.get("choices") or []:
            add_delta(message, part.get("delta") or {})
            logprobs += (part.get("logprobs") or {}).get("content", [])
            for key in ("finish_reason", "stop_reason"):
                choice[key] = part.get(key) if part.get(key) is not None else choice.get(key)
    choice["logprobs"] = {"content": logprobs} if logprobs else None
    return {"id": "chatcmpl-scripted", "object": "chat.completion", "created": 1, "model": "scripted", "choices": [choice], "usage": usage}


def add_delta(message, delta):
    for key in ("content", "reasoning"):
        if delta.get(key):
            message[key] = (message[key] or "") + delta[key]
    for call in delta.get("tool_calls") or []:
        while len(message["tool_calls"]) <= call["index"]:
            message["tool_calls"].append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        known, function = message["tool_calls"][call["index"]], call.get("function") or {}
        known["id"] = call.get("id") or known["id"]
        known["function"]["name"] += function.get("name") or ""
        known["function"]["arguments"] += function.get("arguments") or ""


class Upstream(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, model, reasoning=True):
        super().__init__(("127.0.0.1", 0), Handler)
        self.name, self.model, self.requests, self.fixed = model, Model(reasoning), [], None
        self.images = None
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path.endswith("/models"):
            return self.send(200, {"object": "list", "data": [{"id": self.server.name, "object": "model", "created": 1, "owned_by": "vllm", "max_model_len": 18192}]})
        self.send(200 if self.path in ("/health", "/version") else 404, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/tokenize":
            self.server.requests.append(body)
            return self.send(200, {"count": len(json.dumps(body.get("messages"))) // 4, "max_model_len": 18192, "tokens": []})
        if self.path != "/v1/chat/completions":
            return self.send(404, {"error": {"message": "Not Found", "type": "NotFoundError", "code": 404}})
        self.server.requests.append(body)
        if self.server.fixed is not None:
            chunks = self.server.fixed
        elif refusal := self.refusal(body):
            return self.send(400, {"error": {"message": refusal, "type": "BadRequestError", "param": None, "code": 400}})
        else:
            if "long story" in json.dumps(body["messages"]):
                time.sleep(1)  # long enough to be cancelled
            chunks = list(self.server.model.chunks(body))
        self.send_turn(body, chunks)

    def refusal(self, body):
        images = sum(part.get("type") == "image_url" for m in body["messages"] if isinstance(m.get("content"), list) for part in m["content"])
        if self.server.images is not None and images > self.server.images:
            return f"At most {self.server.images} image(s) may be provided in one prompt."
        choice, tools = body.get("tool_choice"), [tool["function"]["name"] for tool in body.get("tools") or []]
        named = choice.get("function", {}).get("name") if isinstance(choice, dict) else None
        if named is not None and named not in tools or isinstance(choice, dict) and named is None:
            return "The tool specified in `tool_choice` does not match any of the specified `tools`"
        return None

    def send_turn(self, body, chunks):
        if len(chunks) == 1 and "error" in chunks[0]:
            return self.send(chunks[0]["error"].get("code", 500), chunks[0])
        if not body.get("stream"):
            reply = completion(chunks)
            return self.send(reply["error"].get("code", 500) if "error" in reply else 200, reply)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            for one in chunks:
                if "broken" in one:
                    self.close_connection = True
                    return
                self.wfile.write(f"data: {json.dumps(one)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            pass  # the client has gone
        self.close_connection = True

    def send(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
