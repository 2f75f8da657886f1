#!/usr/bin/env python3
"""A fake MCP server over standard input and output: fake_mcp.py TOOLS.json JOURNAL

It offers the tools of the file and answers with what stands there. Every call is one line of the journal. Faults for tests: JOURNAL.faults may
hold {"TOOL": [KIND, ...]}, and each call of TOOL takes one: "error" is an error of the protocol, "tool" one of the tool, "die" ends the server
before the call, "die-after" after it, "hang" never answers.
"""
import json
import os
import sys


def send(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def fault(journal, tool):
    path = journal + ".faults"
    try:
        with open(path) as file:
            faults = json.load(file)
    except FileNotFoundError:
        return None
    kinds = faults.get(tool) or []
    kind = kinds.pop(0) if kinds else None
    with open(path + ".new", "w") as file:
        json.dump(faults, file)
    os.replace(path + ".new", path)
    return kind


def call(journal, tools, params):
    name, arguments = params["name"], params.get("arguments") or {}
    tool = next((tool for tool in tools if tool["name"] == name), None)
    if tool is None:
        return {"content": [{"type": "text", "text": "there is no tool " + name}], "isError": True}
    kind = fault(journal, name)
    if kind == "die":
        os._exit(1)
    if kind == "hang":
        return None
    if kind == "error":
        raise RuntimeError("the service behind it timed out")
    if kind == "tool":
        return {"content": [{"type": "text", "text": "it says no"}], "isError": True}
    with open(journal, "a") as file:
        file.write(json.dumps({"tool": name, "arguments": arguments}, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())
    if kind == "die-after":
        os._exit(1)
    return {"content": [{"type": "text", "text": json.dumps(tool.get("result", "done"))}]}


def answer(request, tools_file, journal):
    """The reply to a message; None for one that gets no reply."""
    if "id" not in request:
        return None
    with open(tools_file) as file:
        tools = json.load(file)
    reply = {"jsonrpc": "2.0", "id": request["id"]}
    method, params = request["method"], request.get("params") or {}
    if method == "initialize":
        reply["result"] = {
            "protocolVersion": params.get("protocolVersion", "2025-06-18"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": os.path.basename(tools_file), "version": "1"},
        }
    elif method == "tools/list":
        shown = [{key: tool[key] for key in tool if key != "result"} for tool in tools]
        reply["result"] = {"tools": shown}
    elif method == "tools/call":
        try:
            result = call(journal, tools, params)
        except RuntimeError as error:
            reply["error"] = {"code": -32000, "message": str(error)}
        else:
            if result is None:
                return None
            reply["result"] = result
    elif method == "ping":
        reply["result"] = {}
    else:
        reply["error"] = {"code": -32601, "message": "unknown method " + method}
    return reply


def main():
    for line in sys.stdin:
        reply = answer(json.loads(line), sys.argv[1], sys.argv[2])
        if reply is not None:
            send(reply)


if __name__ == "__main__":
    main()
