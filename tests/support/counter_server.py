"""An MCP server for tests, in plain Python: it counts, and misbehaves on order.

Speaks the handshake's protocol on stdio, as `python3 counter_server.py [WORD …]`.
Words: `early` writes a line that is no message first; `deaf` never answers anything;
`stubborn` ignores SIGTERM and the end of its input.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

Given = dict[str, Any]

counted = itertools.count()
totals = {"all": 0}
waiting: dict[str, tuple[threading.Event, list[Any]]] = {}
lock = threading.Lock()


def write(text: str) -> None:
    with lock:
        sys.stdout.write(text)
        sys.stdout.flush()


def say(**message: Any) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")


def ask(given: Given, _meta: Given) -> str:
    """Ask the client something, and wait for its answer."""
    name, answered = f"own-{next(counted)}", threading.Event()
    waiting[name] = (answered, [])
    say(id=name, method=given["method"], params=given.get("params", {}))
    answered.wait()
    return json.dumps(waiting[name][1][0])


def add(given: Given, _meta: Given) -> str:
    with lock:
        totals["all"] += int(given.get("by", 1))
    return str(totals["all"])


def change(_given: Given, _meta: Given) -> str:
    """Say that there are other tools now."""
    say(method="notifications/tools/list_changed")
    return "changed"


def die(given: Given, _meta: Given) -> str:
    os._exit(int(given.get("code", 7)))


def sleep(given: Given, _meta: Given) -> str:
    time.sleep(float(given["s"]))
    return "slept"


def noise(_given: Given, _meta: Given) -> str:
    write("hello\n\n")
    half = json.dumps({"jsonrpc": "2.0", "method": "notifications/x", "params": {"a": "ü"}})
    write(half[:10])
    time.sleep(0.3)
    write(half[10:] + "\r\n")
    one = json.dumps({"jsonrpc": "2.0", "method": "notifications/y"})
    write(one + "\n" + one + "\r\n")
    return "heard"


def progress(_given: Given, meta: Given) -> str:
    for step in range(3):
        params = {"progressToken": meta["progressToken"], "progress": step, "total": 3}
        say(method="notifications/progress", params=params)
    return "done"


def children(given: Given, _meta: Given) -> str:
    """Leave grandchildren behind that live for a while."""
    for _ in range(int(given["count"])):
        if os.fork() == 0:
            if os.fork() == 0:
                time.sleep(float(given.get("s", 0.05)))
            os._exit(0)
        os.wait()
    return "left"


TOOLS: dict[str, Callable[[Given, Given], str]] = {
    "add": add,
    "ask": ask,
    "change": change,
    "children": children,
    "die": die,
    "echo": lambda given, _: str(given["text"]),
    "env": lambda given, _: os.environ.get(given["name"], ""),
    "noise": noise,
    "progress": progress,
    "sleep": sleep,
    "whoami": lambda given, _: json.dumps(given, sort_keys=True),
}
SCHEMAS: dict[str, Given] = {
    "add": {"by": {"type": "integer"}},
    "whoami": {"user": {"type": "string"}, "note": {"type": "string"}},
}


def tool(name: str) -> Given:
    properties = SCHEMAS.get(name, {})
    required = sorted(properties) if name == "whoami" else []
    schema = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "inputSchema": schema}


def result_of(method: str, params: Given) -> Given | None:
    match method:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {"listChanged": True}, "logging": {}},
                "serverInfo": {"name": "counter", "version": "1"},
                "instructions": "Counts.",
            }
        case "ping":
            return {}
        case "tools/list":
            return {"tools": [tool(name) for name in TOOLS]}
        case "tools/call":
            given, meta = params.get("arguments") or {}, params.get("_meta") or {}
            text = TOOLS[params["name"]](given, meta)
            return {"content": [{"type": "text", "text": text}], "isError": False}
        case "odd/method":
            return {"params": params}
        case _:
            return None


def serve(request: Given) -> None:
    method = request["method"]
    result = result_of(method, request.get("params") or {})
    if result is None:
        say(id=request["id"], error={"code": -32601, "message": f"no {method}"})
    else:
        say(id=request["id"], result=result)


def main(words: list[str]) -> None:
    if "stubborn" in words:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "early" in words:
        write("starting up\n")
    if "deaf" in words:
        time.sleep(3600)
    for line in sys.stdin:
        message = json.loads(line)
        if "method" not in message:
            answered, answers = waiting[message["id"]]
            answers.append(message.get("result") or message.get("error"))
            answered.set()
        elif "id" in message:
            threading.Thread(target=serve, args=(message,), daemon=True).start()
        else:
            print("told", line.strip(), file=sys.stderr, flush=True)
    while "stubborn" in words:
        time.sleep(1)


main(sys.argv[1:])
