"""An MCP server for tests that speaks HTTP, in plain Python: `python3 http_counter.py PORT`.

Serves both eras of the protocol, counts, and tells what headers it was sent.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

totals = {"all": 0}
lock = threading.Lock()
PROPERTIES = {"by": {"type": "integer"}, "user": {"type": "string"}}
TOOLS = [
    {
        "name": name,
        "inputSchema": {"type": "object", "properties": PROPERTIES, "required": ["user"]},
    }
    for name in ("add", "headers", "given", "die")
]


class Door(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def answer(self, status: int, body: Any = None, **headers: str) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, *messages: Any) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for message in messages:
            data = f"event: message\ndata: {json.dumps(message)}\n\n".encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in message:
            self.answer(202)
            return
        params = message.get("params") or {}
        result = self.result_of(message["method"], params)
        told = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        if message["method"] == "initialize":
            self.answer(200, told, Mcp_Session_Id="inner", X_Own="kept")
        elif params.get("name") == "headers":
            self.stream({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}, told)
        else:
            self.answer(200, told)

    def do_GET(self) -> None:
        self.stream({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})

    def do_DELETE(self) -> None:
        self.answer(200)

    def result_of(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "http", "version": "1"}}
        modern = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        match method:
            case "initialize":
                return {"protocolVersion": params["protocolVersion"], **about}
            case "server/discover":
                return {"supportedVersions": ["2026-07-28"], **about, **modern}
            case "tools/list":
                return {"tools": TOOLS, **modern}
            case "tools/call":
                return {**modern, "content": [{"type": "text", "text": self.call(params)}]}
            case _:
                return modern

    def call(self, params: dict[str, Any]) -> str:
        given = params.get("arguments") or {}
        match params["name"]:
            case "add":
                with lock:
                    totals["all"] += int(given.get("by", 1))
                return str(totals["all"])
            case "headers":
                return json.dumps({name.lower(): value for name, value in self.headers.items()})
            case "die":
                os._exit(9)
            case _:
                return json.dumps(given, sort_keys=True)


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Door).serve_forever()
