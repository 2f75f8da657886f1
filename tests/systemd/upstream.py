"""A model server that calls `exec` once for each line of script.json, and notes what the agent tells it of the results."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PORT_FILE, SEEN = Path(sys.argv[1]), Path(sys.argv[2])
SCRIPT = json.loads(Path(__file__).with_name("script.json").read_text())


class Model(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.answer({"object": "list", "data": [{"id": "scripted", "object": "model", "max_model_len": 32768}]})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        results = [message["content"] for message in request["messages"] if message["role"] == "tool"]
        SEEN.write_text(json.dumps(results))
        if len(results) < len(SCRIPT):
            arguments = json.dumps({"command": SCRIPT[len(results)]["command"]})
            call = {"id": f"call{len(results)}", "type": "function", "function": {"name": "exec", "arguments": arguments}}
            message, reason = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
        else:
            message, reason = {"role": "assistant", "content": "Done."}, "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        self.answer({"id": "x", "object": "chat.completion", "created": 1, "model": "scripted", "choices": [choice], "usage": usage})


server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
PORT_FILE.write_text(str(server.server_port))
server.serve_forever()
