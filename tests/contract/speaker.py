"""Short words for what these checks say over and over."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.contract.columns import Column

_TEMPLATES = """
[templates.python]
image = {image}
resources = {{memory_mb = 256, pids = 256}}
pool = {{ready = 2, max = 40}}

[templates.broken]
image = {missing}
pull = "never"
pool = {{ready = 0, max = 2}}

[templates.user]
image = {image}
user = "1000"
pool = {{ready = 0, max = 8}}
"""


def config(column: Column) -> str:
    """A configuration of these checks."""
    missing = "/nope" if column.below is None else "sandboxd/nope:1"
    words = {"image": json.dumps(column.image), "missing": json.dumps(missing)}
    return column.table + _TEMPLATES.format(**words)


PROBLEM_FIELDS = {
    "type", "title", "status", "detail", "code", "fault", "retry_safe", "mask", "retry_after_s",
    "sandbox_id", "request_id", "details",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Speaker:
    """One sandbox, by its path."""

    http: httpx.Client
    path: str

    def get(self, rest: str = "", **query: Any) -> httpx.Response:
        """GET below the sandbox."""
        return self.http.get(self.path + rest, params=query)

    def post(self, rest: str, body: Any = None, **query: Any) -> httpx.Response:
        """POST JSON below the sandbox."""
        return self.http.post(self.path + rest, json=body, params=query)

    def exec(self, cmd: str | list[str], **fields: Any) -> dict[str, Any]:
        """Run a command to its end; its Exec."""
        response = self.post("/execs", {"cmd": cmd, **fields})
        assert response.status_code == 200, response.text
        body: dict[str, Any] = response.json()
        assert body["state"] == "ended"
        return body

    def start(self, cmd: str | list[str], **fields: Any) -> str:
        """Start a command without waiting; its id."""
        response = self.post("/execs", {"cmd": cmd, "detach": True, **fields})
        assert response.status_code == 202, response.text
        exec_id: str = response.json()["exec_id"]
        return exec_id

    def ended(self, exec_id: str, *, within_s: float = 10) -> dict[str, Any]:
        """The Exec of a command that ends soon."""
        body: dict[str, Any] = self.get(f"/execs/{exec_id}", wait_s=within_s).json()
        assert body["state"] == "ended", body
        return body

    def end(self, *, within_s: float) -> dict[str, Any]:
        """The end of its lease, which comes soon."""
        eventually(
            lambda: self.get().json()["state"] == "ended", within_s=within_s, what="the lease ends"
        )
        end: dict[str, Any] = self.get().json()["end"]
        return end

    def processes(self, words: str) -> list[str]:
        """The processes inside whose command line holds these words."""
        seen = self.exec("for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done")
        return [line for line in str(seen["stdout"]).splitlines() if words in line]

    @contextmanager
    def stream(self, cmd: str | list[str], **fields: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """Run a command and read its events as they come."""
        with self.http.stream(
            "POST",
            f"{self.path}/execs",
            json={"cmd": cmd, **fields},
            headers={"Accept": "application/x-ndjson"},
        ) as response:
            assert response.status_code == 200
            assert response.headers["content-type"] == "application/x-ndjson"
            yield (json.loads(line) for line in response.iter_lines())

    def events(self, exec_id: str, **query: Any) -> list[dict[str, Any]]:
        """All events of a command that has ended, or ends soon."""
        lines = self.get(f"/execs/{exec_id}/events", **query).text.splitlines()
        return [json.loads(line) for line in lines]


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The members of a problem, which is whole."""
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert set(body) >= PROBLEM_FIELDS
    assert body["status"] == status
    assert body["request_id"] == response.headers["x-request-id"]
    assert "Traceback" not in response.text
    return body


def eventually(check: Callable[[], bool], *, within_s: float, what: str) -> None:
    """Wait for a condition that other processes bring about."""
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.02)


def rss_bytes(pid: int) -> int:
    """The memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def held(pid: int) -> tuple[int, int]:
    """How many descriptors and threads a process has."""
    at = Path(f"/proc/{pid}")
    return len(list((at / "fd").iterdir())), len(list((at / "task").iterdir()))
