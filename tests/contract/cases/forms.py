"""The forms in which a command can be run from outside. All must tell the same of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from sandboxd_client import (
    Ended,
    ExecEvent,
    ExecResult,
    Sandbox,
    Sandboxd,
    Started,
    Stderr,
    Stdout,
)
from tests.contract.speaker import Speaker
from tests.contract.test_attach import attach
from tests.support.daemon import ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """How a command ended, and what it wrote."""

    outcome: str | None
    exit_code: int | None
    signal: str | None
    status: int | None
    reason: str | None
    detail: str
    stdout: bytes
    stderr: bytes


Form = Callable[..., Seen]


def call(sandbox: Speaker, cmd: str | list[str], **fields: Any) -> Seen:
    """One request that is answered at the end."""
    answer = sandbox.post("/execs", {"cmd": cmd, **fields}, encoding="base64")
    assert answer.status_code == 200, answer.text
    return _of_exec(answer.json())


def stream(sandbox: Speaker, cmd: str | list[str], **fields: Any) -> Seen:
    """One request that is answered by events."""
    with sandbox.stream(cmd, **fields) as events:
        return of_events(events)


def started(sandbox: Speaker, cmd: str | list[str], **fields: Any) -> Seen:
    """Started, then waited for."""
    exec_id = sandbox.start(cmd, **fields)
    answer = sandbox.get(f"/execs/{exec_id}", wait_s=25, encoding="base64")
    assert answer.json()["state"] == "ended", answer.text
    return _of_exec(answer.json())


def events(sandbox: Speaker, cmd: str | list[str], **fields: Any) -> Seen:
    """Started, then followed by its events."""
    return of_events(sandbox.events(sandbox.start(cmd, **fields)))


def attached(sandbox: Speaker, cmd: str | list[str], **fields: Any) -> Seen:
    """Started, then attached to by a WebSocket."""
    out: dict[int, list[bytes]] = {1: [], 2: []}
    told: dict[str, Any] = {}
    with attach(sandbox, sandbox.start(cmd, **fields)) as socket, suppress(ConnectionClosed):
        while True:
            frame = socket.recv(25)
            assert isinstance(frame, bytes)
            if frame[0] == 3:
                told |= json.loads(frame[1:])
            else:
                out[frame[0]].append(frame[1:])
    assert "gap" not in told
    return _of_exec(told["exit"], b"".join(out[1]), b"".join(out[2]))


def sdk(sandbox: Speaker, cmd: str | list[str], **fields: Any) -> Seen:
    """The SDK's call."""
    with _client(sandbox) as client:
        return _of_result(_there(client, sandbox).exec(cmd, binary=True, **_options(fields)))


def sdk_stream(sandbox: Speaker, cmd: str | list[str], **fields: Any) -> Seen:
    """The SDK's stream."""
    with _client(sandbox) as client:
        return _of_typed(_there(client, sandbox).stream(cmd, **_options(fields)))


def sdk_attach(sandbox: Speaker, cmd: str | list[str], **fields: Any) -> Seen:
    """The SDK's terminal."""
    with _client(sandbox) as client:
        process = _there(client, sandbox).start(cmd, **_options(fields))
        with process.attach() as terminal:
            return _of_typed(terminal)


FORMS: dict[str, Form] = {
    form.__name__: form
    for form in (call, stream, started, events, attached, sdk, sdk_stream, sdk_attach)
}
in_every_form = pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))


def by_program(sandbox: Speaker, cmd: list[str], *, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    """`sandboxd exec`: its exit code and what it writes."""
    argv = [sys.executable, "-m", "sandboxd", "exec", sandbox.path.rsplit("/", 1)[1], "--", *cmd]
    path = os.pathsep.join([str(ROOT), str(ROOT / "client")])
    environ = {**os.environ, "PYTHONPATH": path, "SANDBOXD_API_URL": str(sandbox.http.base_url)}
    done = subprocess.run(
        argv, input=stdin, env=environ, capture_output=True, timeout=20, check=False
    )
    return done.returncode, done.stdout, done.stderr


def in_shell(sandbox: Speaker, text: str, *, shell: str | None = None, **fields: Any) -> Seen:
    """Text in a shell that remembers: that one, or a new one."""
    shell = shell or new_shell(sandbox)
    body = {"text": text, **fields}
    answer = sandbox.post(f"/shells/{shell}/run", body, encoding="base64")
    assert answer.status_code == 200, answer.text
    return _of_exec(answer.json())


def new_shell(sandbox: Speaker, **fields: Any) -> str:
    """The id of a new shell."""
    return str(sandbox.post("/shells", fields).json()["shell_id"])


def of_events(lines: Iterable[dict[str, Any]]) -> Seen:
    """What a whole stream of events tells."""
    out: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    for event in lines:
        if event["type"] in out:
            data = event.get("data_b64")
            out[event["type"]].append(event["data"].encode() if data is None else b64decode(data))
        elif event["type"] == "ended":
            return _of_exec(event["exec"], b"".join(out["stdout"]), b"".join(out["stderr"]))
        else:
            assert event["type"] in {"started", "keepalive"}, event
    raise AssertionError("the stream ended without an end")


def _of_exec(
    told: dict[str, Any], stdout: bytes | None = None, stderr: bytes | None = None
) -> Seen:
    error = told["error"] or {}
    return Seen(
        outcome=told["outcome"],
        exit_code=told["exit_code"],
        signal=told["signal"],
        status=told["status"],
        reason=error.get("reason"),
        detail=error.get("detail", ""),
        stdout=b64decode(told["stdout_b64"]) if stdout is None else stdout,
        stderr=b64decode(told["stderr_b64"]) if stderr is None else stderr,
    )


def _of_typed(events: Iterable[ExecEvent]) -> Seen:
    stdout: list[bytes] = []
    stderr: list[bytes] = []
    for event in events:
        match event:
            case Stdout(data=data):
                stdout.append(data)
            case Stderr(data=data):
                stderr.append(data)
            case Ended(result=result):
                return _of_result(result, b"".join(stdout), b"".join(stderr))
            case _:
                assert isinstance(event, Started), event
    raise AssertionError("the stream ended without an end")


def _of_result(result: ExecResult, stdout: bytes = b"", stderr: bytes = b"") -> Seen:
    return Seen(
        outcome=result.outcome,
        exit_code=result.exit_code,
        signal=result.signal,
        status=result.status,
        reason=result.error.reason if result.error else None,
        detail=result.error.detail if result.error else "",
        stdout=result.stdout_raw or stdout,
        stderr=result.stderr_raw or stderr,
    )


def _client(sandbox: Speaker) -> Sandboxd:
    return Sandboxd(str(sandbox.http.base_url).rstrip("/"))


def _there(client: Sandboxd, sandbox: Speaker) -> Sandbox:
    return client.sandbox(sandbox.path.rsplit("/", 1)[1])


def _options(fields: dict[str, Any]) -> dict[str, Any]:
    """A body's fields as the SDK takes them."""
    options = dict(fields)
    if "stdin_b64" in options:
        options["stdin"] = b64decode(options.pop("stdin_b64"))
    if "tty" in options:
        options["tty"] = (options["tty"]["rows"], options["tty"]["cols"])
    return options
