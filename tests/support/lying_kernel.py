"""A kernel that misbehaves on order: what a cell's code says, it says, true or not.

Run as `python3 lying_kernel.py CONNECTION_FILE`; needs pyzmq. Code that is a JSON list is a script
of steps, obeyed one after the other; any other code is answered as an honest kernel would that
prints it. A step is an object:

    say, on            a message of that type, on `iopub` (the default), `shell`, `stdin`, `control`
    content, header, parent, metadata      what it holds; parent: the request's header if absent
    texts              header, parent, metadata and content as they are, instead of all that
    fill               a text and a number: so often it stands for FILL in the message
    buffers            how many bytes of buffer it has besides
    frames             instead of that: the frames of it, unsigned, as they are
    times              how often
    key                signed with that, not with the kernel's own
    sleep, exit        seconds to do nothing; a status to end with
    close              a channel that it closes
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import zmq

CHANNELS = {"shell": 1, "iopub": 2, "stdin": 3, "control": 4}
KINDS = {"shell": zmq.ROUTER, "iopub": zmq.PUB, "stdin": zmq.ROUTER, "control": zmq.ROUTER}
DELIMITER = b"<IDS|MSG>"


class Liar:
    """The kernel."""

    def __init__(self, path: str) -> None:
        facts = json.loads(Path(path).read_text(encoding="utf-8"))
        self.key: str = facts["key"]
        self.sockets: dict[str, zmq.Socket[bytes]] = {}
        self.count = 0
        self.said = 0
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        for name, number in CHANNELS.items():
            socket = context.socket(KINDS[name])
            socket.sndhwm = 0
            socket.linger = -1
            socket.bind(f"ipc://{facts['ip']}-{number}")
            self.sockets[name] = socket
        self.peer = b""
        self.poller = zmq.Poller()

    def serve(self) -> None:
        """Until it is told to exit."""
        for name in ("shell", "control"):
            self.poller.register(self.sockets[name], zmq.POLLIN)
        while True:
            for socket, _ in self.poller.poll():
                self.take(next(name for name, one in self.sockets.items() if one is socket))

    def take(self, channel: str) -> None:
        frames = self.sockets[channel].recv_multipart()
        start = frames.index(DELIMITER)
        self.peer = frames[0]
        header, content = json.loads(frames[start + 2]), json.loads(frames[start + 5])
        kind = header["msg_type"]
        if kind == "execute_request":
            self.execute(header, content)
        elif kind == "kernel_info_request":
            self.answer(header, channel, kind, INFO)
        else:
            self.answer(header, channel, kind, {"status": "ok"})

    def execute(self, header: dict[str, Any], content: dict[str, Any]) -> None:
        code = content["code"]
        try:
            steps = json.loads(code)
        except ValueError:
            steps = None
        if isinstance(steps, list):
            for step in steps:
                self.obey(step, header)
            return
        if content["store_history"] and not content["silent"]:
            self.count += 1
        shown = {} if content["silent"] else {"stream": {"name": "stdout", "text": code}}
        reply = {"status": "ok", "execution_count": self.count, "user_expressions": {}}
        self.answer(header, "shell", "execute_request", reply, shown=shown)

    def answer(
        self,
        header: dict[str, Any],
        channel: str,
        kind: str,
        reply: dict[str, Any],
        *,
        shown: dict[str, Any] | None = None,
    ) -> None:
        """As it should be done."""
        steps: list[dict[str, Any]] = [{"say": "status", "content": {"execution_state": "busy"}}]
        steps += [{"say": name, "content": said} for name, said in (shown or {}).items()]
        steps += [
            {"say": kind.replace("_request", "_reply"), "on": channel, "content": reply},
            {"say": "status", "content": {"execution_state": "idle"}},
        ]
        for step in steps:
            self.obey(step, header)

    def obey(self, step: dict[str, Any], asked: dict[str, Any]) -> None:
        if "exit" in step:
            os._exit(step["exit"])
        if "close" in step:
            socket = self.sockets[step["close"]]
            self.poller.unregister(socket)
            socket.close(linger=0)
        time.sleep(step.get("sleep", 0))
        if not {"say", "frames", "texts"} & set(step):
            return
        channel = step.get("on", "iopub")
        for _ in range(step.get("times", 1)):
            if "frames" in step:
                frames = [frame.encode() for frame in step["frames"]]
            else:
                frames = self.signed(step, asked)
            ident = b"topic" if channel == "iopub" else self.peer
            self.sockets[channel].send_multipart([ident, *frames])

    def signed(self, step: dict[str, Any], asked: dict[str, Any]) -> list[bytes]:
        texts = step.get("texts")
        if texts is None:
            self.said += 1
            own = {"msg_id": f"liar-{self.said}", "msg_type": step["say"], "version": "5.3"}
            header = {**own, "session": "liar", "username": "liar", "date": DATE}
            header |= step.get("header", {})
            parts = [header, step.get("parent", asked), step.get("metadata", {})]
            texts = [json.dumps(part) for part in [*parts, step.get("content", {})]]
        if "fill" in step:
            piece, number = step["fill"]
            texts = [text.replace("FILL", (piece * number).rstrip(",")) for text in texts]
        encoded = [text.encode() for text in texts]
        code = hmac.new(step.get("key", self.key).encode(), digestmod=hashlib.sha256)
        for text in encoded:
            code.update(text)
        buffers = [b"x" * step["buffers"]] if "buffers" in step else []
        return [DELIMITER, code.hexdigest().encode(), *encoded, *buffers]


DATE = "2026-01-01T00:00:00.000000Z"
INFO = {
    "status": "ok",
    "protocol_version": "5.3",
    "implementation": "liar",
    "implementation_version": "1",
    "language_info": {"name": "lies", "version": "1", "mimetype": "text/plain"},
    "banner": "",
}

if __name__ == "__main__":
    if "LIAR_EXITS" in os.environ:  # before anybody can speak with it
        sys.exit(int(os.environ["LIAR_EXITS"]))
    Liar(sys.argv[-1]).serve()
