"""A model server that calls `exec` once for each line of script.json, and notes what the agent tells it of the results."""

import json
import sys
from http.server import ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from model_server import ModelServer  # noqa: E402

PORT_FILE, SEEN = Path(sys.argv[1]), Path(sys.argv[2])
SCRIPT = json.loads(Path(__file__).with_name("script.json").read_text())


class Model(ModelServer):
    def do_POST(self):
        request = self.read_json()
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
        self.send_json(200, {"id": "x", "object": "chat.completion", "created": 1, "model": "scripted", "choices": [choice], "usage": usage})


server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
PORT_FILE.write_text(str(server.server_port))
server.serve_forever()
