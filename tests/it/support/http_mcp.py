"""The fake MCP server of the examples over streamable HTTP: http_mcp.py TOOLS.json JOURNAL

It listens on a free port, written to JOURNAL.port, or on the port that stands there.
"""

import http.server
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../../examples/experts-demo/servers"))

import fake_mcp  # noqa: E402

TOOLS, JOURNAL = sys.argv[1], sys.argv[2]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def reply(self, status, body=b""):
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply(405)

    def do_DELETE(self):
        self.reply(200)

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        reply = fake_mcp.answer(request, TOOLS, JOURNAL)
        if reply is None:
            return self.reply(202)
        return self.reply(200, json.dumps(reply).encode())

    def log_message(self, *_):
        pass


try:
    with open(JOURNAL + ".port") as file:
        port = int(file.read())
except FileNotFoundError:
    port = 0
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
with open(JOURNAL + ".port.new", "w") as file:
    file.write(str(server.server_port))
os.replace(JOURNAL + ".port.new", JOURNAL + ".port")
server.serve_forever()
