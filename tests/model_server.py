"""What the scripted model servers of the scripts share. Each adds `do_POST`, or answers with its own `do_GET`."""
import json
from http.server import BaseHTTPRequestHandler


class ModelServer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    models = [{"id": "scripted", "object": "model", "max_model_len": 32768}]

    def log_message(self, *_):
        pass

    def read_json(self):
        return json.loads(self.rfile.read(int(self.headers["content-length"])))

    def send_json(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path.endswith("/models"):
            return self.send_json(200, {"object": "list", "data": self.models})
        self.send_json(404, {"detail": "Not Found"})
