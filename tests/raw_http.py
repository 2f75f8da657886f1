"""Byte for byte to a server and back, for the scripts that record what real servers send."""
import json
import socket
import time
import urllib.request

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOL = {"type": "function", "function": {"name": "read", "description": "Reads a file.", "parameters": PARAMETERS}}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def exchange(port, request):
    """The answer's bytes, until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=600) as connection:
        connection.sendall(request)
        received = b""
        while piece := connection.recv(65536):
            received += piece
    return received


def encode_chat(body):
    """The bytes of a chat request."""
    text = json.dumps(body)
    return (f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"content-length: {len(text)}\r\nconnection: close\r\n\r\n{text}").encode()


def wait_for_health(port):
    for _ in range(600):
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
        except OSError:
            time.sleep(0.2)


def record_tool_turn(port, folder, name, **more):
    """Asks the model `name` with a tool, whole and streamed, and writes what was sent and received."""
    body = {"model": name, "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL], "max_tokens": 100,
            "temperature": 0}
    whole = encode_chat({**body, "stream": False, **more})
    streamed = encode_chat({**body, "stream": True, "stream_options": {"include_usage": True}, **more})
    (folder / f"{name}.nonstream.req.http").write_bytes(whole)
    (folder / f"{name}.nonstream.resp.http").write_bytes(exchange(port, whole))
    (folder / f"{name}.stream.resp.http").write_bytes(exchange(port, streamed))
    print(folder.name, name, flush=True)
