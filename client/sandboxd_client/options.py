"""The keyword arguments of `lease`, `exec`, `execute` and the like, and the bodies made of them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, cast

Cmd = str | Sequence[str]  # shell text for /bin/sh -c, or an argv that no shell touches


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file that a lease brings along, where its mode matters: `FileContent(text, mode=0o755)`."""

    data: bytes | str
    mode: int | None = None


class CommandOptions(TypedDict, total=False):
    """How to run a command.

    env: on top of the sandbox's. cwd: relative to the workdir. user: needs a backend that can.
    stdin: given whole, then end of file; without it a command sees end of file at once.
    stdin_open: keep it open for `Process.write` and `attach`. tty: (rows, cols) of a terminal to
    run in; all output is then `stdout`. timeout_s: from its start; without it the lease's
    end ends it. output_limit_bytes: kept per stream. exec_id: the caller's own id; the same id
    attaches and never runs twice.
    """

    env: Mapping[str, str] | None
    cwd: str | None
    user: str | None
    stdin: bytes | str | None
    stdin_open: bool
    tty: tuple[int, int] | None
    timeout_s: float | None
    output_limit_bytes: int | None
    exec_id: str | None


class CellOptions(TypedDict, total=False):
    """How to run a cell.

    timeout_s: from when the kernel is given it: waiting behind other cells does not count. Then it
    is interrupted, and the kernel restarted if that does not end it. cell_id: the caller's own id;
    the same id attaches and never runs twice. allow_stdin: it may ask for input, which
    `Kernel.input` answers; without it such a question is an error in the cell. stop_on_error: if it
    fails, cells that wait behind it are aborted; true by default. store_history: it counts, and
    `In` and `Out` have it; true by default.
    """

    timeout_s: float | None
    cell_id: str | None
    allow_stdin: bool
    stop_on_error: bool
    store_history: bool


class LeaseOptions(TypedDict, total=False):
    """What a lease may say beside its template.

    image: instead of a template. resources, runtime: other than the template's make it a cold
    lease. network: "none", "internet" or {"allow": ["HOST:PORT", …]}. forwards: ports inside, each
    to one address outside, as text or as {"url": …, "headers": {…}} whose headers are added
    outside, where nobody inside sees them. kernels: kernelspecs of kernels to be running by the
    time it is answered. mcp_servers: names of those that it is to see, or declarations on top of
    the template's. secrets: environment variables that are told to nobody. files: by path, bytes,
    text or FileContent. start: a command that runs from the beginning, under the id `start`.
    timeout_s, idle_timeout_s: the two clocks. grading_s: at its hard
    end what runs is ended, and the sandbox kept that much longer to grade. wait_timeout_s: how
    long to queue, and the deadline of all tries (default 600). run_id, group_id, rollout_id,
    labels: to find it by. priority: who queues with a higher one is served first, 0 by default.
    idempotency_key: the same key gives the same sandbox; with a key of the caller's own a
    cancelled lease is left in place, to be asked for again.
    """

    image: str | None
    resources: Mapping[str, float] | None
    env: Mapping[str, str] | None
    secrets: Mapping[str, str] | None
    files: Mapping[str, bytes | str | FileContent] | None
    workdir: str | None
    user: str | None
    start: Cmd | None
    network: str | Mapping[str, Any] | None
    forwards: Mapping[int, str | Mapping[str, Any]] | None
    kernels: Sequence[str] | None
    mcp_servers: Sequence[str] | Mapping[str, Mapping[str, Any]] | None
    runtime: str | None
    labels: Mapping[str, str] | None
    timeout_s: float | None
    idle_timeout_s: float | None
    grading_s: float | None
    wait_timeout_s: float | None
    run_id: str | None
    group_id: str | None
    rollout_id: str | None
    priority: int | None
    idempotency_key: str | None


def command_body(cmd: Cmd, options: CommandOptions, *, exec_id: str) -> dict[str, Any]:
    """The body that starts a command. Raises TypeError for an option that does not exist."""
    body = _given(options, CommandOptions)
    stdin = body.pop("stdin", None)
    if isinstance(stdin, str):
        body["stdin"] = stdin
    elif stdin is not None:
        body["stdin_b64"] = base64.b64encode(stdin).decode("ascii")
    if "tty" in body:
        body["tty"] = dict(zip(("rows", "cols"), body["tty"], strict=True))
    body["cmd"] = cmd if isinstance(cmd, str) else list(cmd)
    body["exec_id"] = exec_id
    return body


def cell_body(code: str, options: CellOptions, *, cell_id: str) -> dict[str, Any]:
    """The body that runs a cell. Raises TypeError for an option that does not exist."""
    return {**_given(options, CellOptions), "code": code, "cell_id": cell_id}


def lease_body(template: str | None, options: LeaseOptions, *, key: str) -> dict[str, Any]:
    """The body that asks for a lease. Raises TypeError for an option that does not exist."""
    body = _given(options, LeaseOptions)
    if template is not None:
        body["template"] = template
    files = cast("Mapping[str, bytes | str | FileContent]", body.pop("files", {}))
    if files:
        body["files"] = {path: _file(content) for path, content in files.items()}
    body["idempotency_key"] = key
    return body


def _given(options: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    unknown = sorted(options.keys() - kind.__annotations__.keys())
    if unknown:
        raise TypeError(
            f"there is no option {unknown[0]!r}; there are {sorted(kind.__annotations__)}"
        )
    return {name: value for name, value in options.items() if value is not None}


def _file(content: bytes | str | FileContent) -> dict[str, Any]:
    if not isinstance(content, FileContent):
        content = FileContent(content)
    told: dict[str, Any] = {} if content.mode is None else {"mode": content.mode}
    if isinstance(content.data, str):
        told["text"] = content.data
    else:
        told["data_b64"] = base64.b64encode(content.data).decode("ascii")
    return told
