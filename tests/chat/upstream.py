"""A scripted model server for tests/chat/run.sh: streams what script.json says for the person's last words.

Usage: upstream.py SCRIPT PORT_FILE LOG. Chooses the step by how often the model has called tools since those words, and
logs each request's last message as a line of JSON. While PORT_FILE.slow exists, the list of models comes late. A request that breaks the protocol is answered with 400 and logged.
"""

import json
import os
import sys
import time
from http.server import ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from model_server import ModelServer  # noqa: E402

script_path, port_file, log_path = sys.argv[1:]
with open(script_path, encoding="utf-8") as file:
    SCRIPT = json.load(file)


def log(line):
    with open(log_path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def problem(messages):
    """Every call must have its result, every result its call."""
    open_calls = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return f"no call {message['tool_call_id']}"
            open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            return f"no result for {open_calls}"
        open_calls = [call["id"] for call in message.get("tool_calls") or []]
    return f"no result for {open_calls}" if open_calls else None


class Handler(ModelServer):
    models = [{"id": name, "max_model_len": 131072} for name in ("scripted", "scripted-too")]

    def do_GET(self):
        if os.path.exists(port_file + ".slow"):
            time.sleep(2)
        try:
            super().do_GET()
        except OSError:
            log({"hung_up": self.path})

    def do_POST(self):
        request = self.read_json()
        messages = request["messages"]
        log({"last": messages[-1], "count": len(messages), "system": messages[0]["role"], "model": request["model"]})
        fault = problem(messages)
        if fault:
            log({"problem": fault})
            return self.send_json(400, {"error": {"message": fault, "type": "invalid_request_error"}})
        last = max(place for place, message in enumerate(messages) if message["role"] == "user")
        words = messages[last]["content"].splitlines()[-1].strip()
        if messages[last]["content"].startswith("Summarise the following work"):
            words = "a summary"
        rounds = sum(1 for message in messages[last:] if message.get("tool_calls"))
        step = SCRIPT[words][rounds]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            self.stream(step, f"{len(messages)}")
        except OSError:
            log({"hung_up": words})
        self.close_connection = True

    def stream(self, step, turn):
        pause = step.get("pause", 0.01)
        for field in ("reasoning", "content"):
            for piece in step.get(field, "").split(" "):
                if piece:
                    self.chunk({field: piece + " "})
                    time.sleep(pause)
        for index, (name, arguments) in enumerate(step.get("calls", [])):
            call = {"index": index, "id": f"call{turn}x{index}", "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)}}
            self.chunk({"tool_calls": [call]})
        self.chunk({}, "tool_calls" if step.get("calls") else "stop")
        self.event({"choices": [], "usage": {"prompt_tokens": 1200, "completion_tokens": 80, "total_tokens": 1280}})
        self.wfile.write(b"data: [DONE]\n\n")

    def chunk(self, delta, finish=None):
        self.event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def event(self, body):
        body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "scripted", **body}
        self.wfile.write(f"data: {json.dumps(body)}\n\n".encode())
        self.wfile.flush()


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open(port_file, "w", encoding="utf-8") as file:
    file.write(str(server.server_address[1]))
server.serve_forever()
