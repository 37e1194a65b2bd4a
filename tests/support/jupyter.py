"""A leased sandbox as a kernel gateway, and clients of its kernels that speak the bare protocol."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
from websockets.sync.client import ClientConnection, connect

PATIENCE_S = 20.0
Said = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gateway:
    """url: with a token in it, as clients are given it. sandbox: its path below the daemon."""

    http: httpx.Client
    sandbox: str
    url: str

    @classmethod
    @contextmanager
    def lease(cls, http: httpx.Client, template: str = "python") -> Iterator[Gateway]:
        """Lease a sandbox, for the length of the `with`."""
        leased = http.post("/v1/sandboxes", json={"template": template})
        assert leased.status_code == 201, leased.text
        sandbox = f"/v1/sandboxes/{leased.json()['id']}"
        try:
            token = http.post(f"{sandbox}/tokens", json={}).json()
            yield cls(http, sandbox, token["url"] + "/jupyter")
        finally:
            http.delete(sandbox)

    def start(self) -> Kernel:
        """Start a kernel as its clients do."""
        started = self.http.post(f"{self.url}/api/kernels", json={"name": "python3"})
        assert started.status_code == 201, started.text
        return Kernel(self, started.json()["id"])


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel behind a gateway."""

    gateway: Gateway
    id: str

    @property
    def url(self) -> str:
        """Where Jupyter's clients find it."""
        return f"{self.gateway.url}/api/kernels/{self.id}"

    def model(self) -> Said:
        """As Jupyter's clients see it."""
        told: Said = self.gateway.http.get(self.url).json()
        return told

    @contextmanager
    def client(self, *, session: str = "", **options: Any) -> Iterator[Client]:
        """A client at its channels. session: named in the address too, so that it may come back."""
        address = "ws" + self.url.removeprefix("http") + "/channels"
        if session:
            address += f"?session_id={session}"
        with connect(address, max_size=None, open_timeout=PATIENCE_S, **options) as socket:
            yield Client(socket, session or uuid4().hex)

    def cell(self, code: str, **more: Any) -> Said:
        """Run a cell by our own API; the Cell."""
        path = f"{self.gateway.sandbox}/kernels/{self.id}/execute"
        answer = self.gateway.http.post(path, json={"code": code, **more})
        assert answer.status_code in {200, 202}, answer.text
        told: Said = answer.json()
        return told


@dataclass(slots=True)
class Client:
    """One WebSocket. heard: all that came so far."""

    socket: ClientConnection
    session: str
    heard: list[Said] = field(default_factory=list)

    def send(self, kind: str, content: Said, *, channel: str | None = "shell", **more: Any) -> str:
        """Send a message; its id. channel None: leave it out."""
        message = self.message(kind, content, channel=channel, **more)
        self.socket.send(json.dumps(message))
        return str(message["header"]["msg_id"])

    def message(
        self, kind: str, content: Said, *, channel: str | None = "shell", **more: Any
    ) -> Said:
        """A message, not sent yet. more: parts of it."""
        header = {
            "msg_id": uuid4().hex, "msg_type": kind, "session": self.session,
            "username": "", "date": "2026-01-01T00:00:00Z", "version": "5.3",
        }  # fmt: skip
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        return {**message, **({} if channel is None else {"channel": channel}), **more}

    def execute(self, code: str, *, channel: str | None = "shell", stdin: bool = False) -> str:
        """Ask it to run code; the message's id."""
        content = {
            "code": code, "silent": False, "store_history": True, "user_expressions": {},
            "allow_stdin": stdin, "stop_on_error": True,
        }  # fmt: skip
        return self.send("execute_request", content, channel=channel)

    def receive(self, within_s: float = PATIENCE_S) -> Said:
        """The next message. Raises TimeoutError."""
        said: Said = json.loads(self.socket.recv(timeout=within_s))
        self.heard.append(said)
        return said

    def until(self, wanted: Callable[[Said], bool], within_s: float = PATIENCE_S) -> Said:
        """The first message that is wanted."""
        due = time.monotonic() + within_s
        while True:
            said = self.receive(max(0.01, due - time.monotonic()))
            if wanted(said):
                return said

    def run(self, code: str) -> str:
        """Run code to its idle; what it printed."""
        return self.finish(self.execute(code))

    def finish(self, msg_id: str) -> str:
        """Wait for a request's reply and idle; what it printed."""
        said: Said | None = None
        while said is None or not (self.of(msg_id, "execute_reply") and self._idle(msg_id)):
            said = self.receive()
            while said["msg_type"] == "stream":  # of which there may be very many
                said = self.receive()
        return "".join(said["content"]["text"] for said in self.of(msg_id, "stream"))

    def of(self, msg_id: str, kind: str) -> list[Said]:
        """Messages of a kind that answer a request."""
        return [
            said
            for said in self.heard
            if said["msg_type"] == kind and said["parent_header"].get("msg_id") == msg_id
        ]

    def _idle(self, msg_id: str) -> bool:
        told = [said["content"]["execution_state"] for said in self.of(msg_id, "status")]
        return "idle" in told


def is_state(state: str) -> Callable[[Said], bool]:
    """Whether a message tells of that state."""
    return lambda said: said["msg_type"] == "status" and said["content"]["execution_state"] == state


def until(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    """Poll a condition."""
    due = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < due, "it never came true"
        time.sleep(0.02)
