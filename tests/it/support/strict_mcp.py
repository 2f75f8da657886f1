"""A small MCP server that accepts only what the specification allows (2025-06-18). Standard library only.

usage: strict_mcp.py DIR            over standard input and output; files in DIR tell what happened
       strict_mcp.py DIR --http     over streamable HTTP on a free port, written to DIR/port, or on the port that stands there
What it finds wrong it appends to DIR/problems.
"""

import http.server
import json
import os
import subprocess
import sys
import threading
import time

DIR = sys.argv[1]
PIXEL = "iVBORw0KGgoAAAAN"


def note(name, text):
    with open(os.path.join(DIR, name), "a") as file:
        file.write(text + "\n")


def problem(text):
    note("problems", text)


def tool(name, description, properties=None, required=(), **more):
    schema = {"type": "object", "properties": properties or {}, "required": list(required)}
    return {"name": name, "description": description, "inputSchema": schema, **more}


TOOLS = [
    tool("echo", "Says it again.", {"text": {"type": "string"}}, ["text"], annotations={"readOnlyHint": True}),
    tool("picture", "Shows a picture."),
    tool("structured", "Has no text."),
    tool("fail", "Fails."),
    tool("slow", "Takes a minute."),
    tool("die", "Ends the server."),
    tool("grow", "Gets the server a new tool."),
    tool("broken", "Answers with an error of the protocol."),
    tool("odd.name/of a tool", "Has an odd name."),
]


def text(value, **more):
    return {"content": [{"type": "text", "text": value}], **more}


class Session:
    def __init__(self, send):
        self.send, self.initialized = send, False

    def handle(self, message):
        """The result of a request, an error, or None."""
        if message.get("jsonrpc") != "2.0" or not isinstance(message.get("method"), str):
            problem(f"no JSON-RPC request: {message}")
        method, params = message.get("method"), message.get("params") or {}
        if method == "initialize":
            for key in ("protocolVersion", "capabilities", "clientInfo"):
                if key not in params:
                    problem(f"initialize without {key}")
            if (params.get("clientInfo") or {}).get("name") != "respool":
                problem(f"who is {params.get('clientInfo')}?")
            return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": True}},
                    "serverInfo": {"name": "strict", "version": "1"}}
        if method == "notifications/initialized":
            self.initialized = True
            return None
        if method == "notifications/cancelled":
            note("cancelled", str(params.get("requestId")))
            return None
        if not self.initialized:
            problem(f"{method} before initialized")
        if method == "tools/list":
            page = int(params.get("cursor") or 0)
            more = {"nextCursor": str(page + 5)} if page + 5 < len(TOOLS) else {}
            return {"tools": TOOLS[page:page + 5], **more}
        if method == "tools/call":
            return self.call(params)
        if "id" in message:
            return KeyError(f"no method {method}")
        return None

    def call(self, params):
        name, arguments = params.get("name"), params.get("arguments", {})
        if not isinstance(arguments, dict):
            problem(f"arguments of {name} are {arguments}")
        note("calls", json.dumps([name, arguments]))
        if name == "echo":
            return text(arguments["text"]) if "text" in arguments else ValueError("text is missing")
        if name == "picture":
            return {"content": [{"type": "image", "data": PIXEL, "mimeType": "image/png"}]}
        if name == "structured":
            return {"content": [], "structuredContent": {"answer": 42}}
        if name == "fail":
            return text("it did not work", isError=True)
        if name == "broken":
            return RuntimeError("out of order")
        if name == "slow":
            time.sleep(60)
            return text("late")
        if name == "die":
            print("Traceback:\nKeyError: 'boom'", file=sys.stderr, flush=True)
            os._exit(3)
        if name == "grow":
            TOOLS.append(tool("grown", "Is new."))
            self.send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            return text("grown")
        if name == "odd.name/of a tool":
            return text("odd")
        return ValueError(f"no tool {name}")


def answer(session, message):
    result = session.handle(message)
    if "id" not in message:
        return None
    if isinstance(result, Exception):
        code = -32601 if isinstance(result, KeyError) else -32603 if isinstance(result, RuntimeError) else -32602
        return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": code, "message": str(result.args[0])}}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def serve_stdio():
    lock = threading.Lock()

    def send(message):
        with lock:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

    child = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    note("pids", f"{os.getpid()} {child.pid}")
    note("environment", " ".join(sorted(os.environ)))
    if os.path.exists(os.path.join(DIR, "refuse")):
        print("I refuse to start", file=sys.stderr)
        sys.exit(7)
    session = Session(send)

    def work(message):
        reply = answer(session, message)
        if reply:
            send(reply)

    for line in sys.stdin:
        message = json.loads(line)
        is_slow = (message.get("params") or {}).get("name") == "slow"
        if is_slow:
            threading.Thread(target=work, args=[message], daemon=True).start()
        else:
            work(message)


class Http(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    session = Session(lambda message: None)

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply(405)

    def do_DELETE(self):
        self.reply(200)

    def do_POST(self):
        if self.headers.get("authorization") != "Bearer mcp-token":
            return self.reply(401)
        accept = self.headers.get("accept", "")
        if "application/json" not in accept or "text/event-stream" not in accept:
            problem(f"accept: {accept}")
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        is_first = message.get("method") == "initialize"
        if not is_first and self.headers.get("mcp-session-id") != "session-1":
            problem(f"{message.get('method')} without the session")
        reply = answer(self.session, message)
        if reply is None:
            return self.reply(202)
        if (message.get("params") or {}).get("name") == "echo":
            body = f"event: message\ndata: {json.dumps(reply)}\n\n".encode()
            return self.reply(200, body, content_type="text/event-stream")
        more = {"mcp_session_id": "session-1"} if is_first else {}
        return self.reply(200, json.dumps(reply).encode(), content_type="application/json", **more)

    def log_message(self, *_):
        pass


def serve_http():
    try:
        with open(os.path.join(DIR, "port")) as file:
            port = int(file.read())
    except FileNotFoundError:
        port = 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Http)
    note("listening", str(os.getpid()))
    with open(os.path.join(DIR, "port.new"), "w") as file:
        file.write(str(server.server_port))
    os.rename(os.path.join(DIR, "port.new"), os.path.join(DIR, "port"))
    server.serve_forever()


if "--http" in sys.argv:
    serve_http()
else:
    serve_stdio()
