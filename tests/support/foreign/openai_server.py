"""A model behind OpenAI's chat API that says what a script has it say: real HTTP, no model.

Its turn is the number of answers that stand in the conversation already, so that any number of
conversations may go on at once, and one that is tried again is answered the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool, with its arguments."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model says at its turn: text, or calls of tools."""

    text: str = ""
    calls: Sequence[Call] = ()


Script = Callable[[list[dict[str, Any]]], Turn]  # of the messages so far


def turns(*said: Turn) -> Script:
    """One turn after the other; the last one again and again."""

    def say(messages: list[dict[str, Any]]) -> Turn:
        answered = [message["role"] for message in messages].count("assistant")
        return said[min(answered, len(said) - 1)]

    return say


@dataclass(slots=True)
class ScriptedModel:
    """A running server. requests: the bodies that came, in their order."""

    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def note(self, body: dict[str, Any]) -> None:
        """A request came."""
        with self._lock:
            self.requests.append(body)

    @property
    def tool_results(self) -> list[str]:
        """What tools answered in the longest conversation, in order."""
        if not self.requests:
            return []
        longest = max((body["messages"] for body in self.requests), key=len)
        return [_text(each["content"]) for each in longest if each["role"] == "tool"]


def _text(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


@contextmanager
def scripted_model(script: Script) -> Iterator[ScriptedModel]:
    """Its `url` ends in `/v1`. Runs until the block is left."""

    class Speaks(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            model = {"id": "fake", "object": "model", "created": 0, "owned_by": "tests"}
            self._answer(json.dumps({"object": "list", "data": [model]}), "application/json")

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            body = json.loads(self.rfile.read(length))
            model.note(body)
            message = _message(script(body["messages"]))
            if body.get("stream"):
                self._answer("".join(_events(message)), "text/event-stream")
            else:
                self._answer(json.dumps(_completion(message)), "application/json")

        def _answer(self, text: str, kind: str) -> None:
            data = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 256
        daemon_threads = True  # a connection that is kept must not keep us

    with Server(("127.0.0.1", 0), Speaks) as server:
        model = ScriptedModel(f"http://127.0.0.1:{server.server_address[1]}/v1")
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield model
        finally:
            server.shutdown()
            thread.join()


def _message(turn: Turn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": call.tool, "arguments": json.dumps(dict(call.arguments))},
            }
            for number, call in enumerate(turn.calls)
        ]
    return message


def _reason(message: Mapping[str, Any]) -> str:
    return "tool_calls" if message.get("tool_calls") else "stop"


def _completion(message: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": _reason(message)}
    return {**_head("chat.completion"), "choices": [choice], "usage": _USAGE}


def _head(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 0, "model": "fake"}


def _events(message: dict[str, Any]) -> Iterator[str]:
    """The message in two pieces, why it ends, what it used, and the end of the stream."""
    calls = message.get("tool_calls", [])
    first = {"role": "assistant", "content": message["content"] or ""}
    deltas: list[dict[str, Any]] = [first]
    deltas += [{"tool_calls": [{"index": place, **call}]} for place, call in enumerate(calls)]
    head = _head("chat.completion.chunk")
    for delta in deltas:
        yield _event({**head, "choices": [_choice(delta, None)]})
    yield _event({**head, "choices": [_choice({}, _reason(message))]})
    yield _event({**head, "choices": [], "usage": _USAGE})
    yield "data: [DONE]\n\n"


def _choice(delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": reason}


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"
