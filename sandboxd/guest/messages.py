"""What travels in JSON between us and the guest: orders written, answers read.

Nothing the guest says is trusted in size or shape: whatever is not as the protocol has it raises
`GuestLost`, and no missing number is ever filled in.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64encode
from dataclasses import asdict, dataclass
from typing import Any

from sandboxd.guest.fields import Fields, loads, nonsense
from sandboxd.model.claim import Claim
from sandboxd.model.command import Command, ExecRecord, Kept, TerminalSize
from sandboxd.model.files import FileInfo, FileType, Unpacked
from sandboxd.model.shell import Shell, ShellOrder, ShellState, ShellText
from sandboxd.model.template import Setup
from sandboxd.wire.codes import Outcome, StartFailure

PROTOCOLS = (2, 3, 4)  # numbers of the guest protocol that are spoken here
AFFINITY_SINCE = 3  # the first whose guests know where their commands are to run

_OUTCOMES = {str(outcome): outcome for outcome in Outcome}
_MAX_EXIT_CODE = 255
_REASONS = {str(reason): reason for reason in StartFailure}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who answers: versions, whose it is, how long it has to live (None: no end), what it does."""

    protocol: int
    protocols: tuple[int, ...]
    version: str
    boot_id: str
    lease_id: str
    ready: bool  # its set-up was finished; a box without one is never told
    life_left_s: float | None
    uptime_s: float
    execs_running: int
    idle_s: float
    shell: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestReadings:
    """What the box uses, as its guest reads it from inside. None where it cannot be had."""

    cpu_s: float | None = None
    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    memory_limit_bytes: int | None = None
    pids: int | None = None
    oom_kills: int | None = None
    disk_free_bytes: int | None = None
    load_1m: float | None = None


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """Bytes of one stream from the offset asked for. ended: there will be no more after them."""

    data: bytes
    next_offset: int
    ended: bool


def claim_body(claim: Claim) -> bytes:
    """A claim as the guest takes it."""
    return json.dumps(claim_fields(claim)).encode()


def claim_fields(claim: Claim) -> dict[str, Any]:
    """The same as part of another body."""
    order: dict[str, Any] = {
        "lease_id": claim.lease_id,
        "env": dict(claim.env),
        "workdir": claim.workdir,
        "user": claim.user,
        "capabilities": claim.capabilities,
        "life_s": claim.life_s,
        "files": [
            {"path": f.path, "data_b64": _b64(f.data), "mode": 0o644 if f.mode is None else f.mode}
            for f in claim.files
        ],
    }
    for name in ("nofile", "nproc", "max_rss_as_bytes"):
        if (limit := getattr(claim, name)) is not None:
            order[name] = limit
    if claim.affinity is not None:
        order["affinity"] = asdict(claim.affinity)
    return order


def setup_body(setup: Setup) -> bytes:
    """What commands before the claim run with, as the guest takes it."""
    order = {"env": dict(setup.env), "workdir": setup.workdir, "user": setup.user}
    return json.dumps(order).encode()


def command_body(command: Command, *, wait: bool) -> bytes:
    """A command as the guest takes it."""
    order: dict[str, Any] = {
        "exec_id": command.exec_id,
        "fingerprint": command.fingerprint(),
        "argv": command.argv,
        "env": dict(command.env),
        "cwd": command.cwd,
        "user": command.user,
        "timeout_s": command.timeout_s,
        "stdin_b64": None if command.stdin is None else _b64(command.stdin),
        "stdin_open": command.stdin_open,
        "tty": None if command.tty is None else size_fields(command.tty),
        "output_limit_bytes": command.output_limit_bytes,
        "wait": wait,
    }
    if command.standing:
        order["standing"] = True
    if command.expected is not None:
        order["expected"] = claim_fields(command.expected)
    return json.dumps(order).encode()


def size_fields(size: TerminalSize) -> dict[str, int]:
    """The size of a terminal as the guest takes it."""
    return {"rows": size.rows, "cols": size.cols}


def shell_body(order: ShellOrder) -> bytes:
    """A shell to open, as the guest takes it."""
    return json.dumps(
        {
            "shell_id": order.shell_id,
            "env": dict(order.env),
            "cwd": order.cwd,
            "user": order.user,
        }
    ).encode()


def shell_text_body(text: ShellText, *, wait: bool) -> bytes:
    """Text for a shell, as the guest takes it."""
    return json.dumps(
        {
            "exec_id": text.exec_id,
            "fingerprint": text.fingerprint(),
            "text": text.text,
            "timeout_s": text.timeout_s,
            "output_limit_bytes": text.output_limit_bytes,
            "wait": wait,
        }
    ).encode()


def read_hello(body: bytes) -> Hello:
    """The answer to `hello`."""
    said = loads(body)
    return Hello(
        protocol=said.count("protocol"),
        protocols=tuple(said.counts("protocols")),
        version=said.text("version"),
        boot_id=said.text("boot_id"),
        lease_id=said.text("lease_id"),
        ready=said.flag("ready"),
        life_left_s=said.optional_seconds("life_left_s"),
        uptime_s=said.seconds("uptime_s"),
        execs_running=said.count("execs_running"),
        idle_s=said.seconds("idle_s"),
        shell=said.text("shell"),
    )


def read_readings(body: bytes) -> GuestReadings:
    """The answer to `readings`."""
    said = loads(body)
    return GuestReadings(
        cpu_s=said.optional_number("cpu_s"),
        memory_bytes=said.optional_count("memory_bytes"),
        memory_peak_bytes=said.optional_count("memory_peak_bytes"),
        memory_limit_bytes=said.optional_count("memory_limit_bytes"),
        pids=said.optional_count("pids"),
        oom_kills=said.optional_count("oom_kills"),
        disk_free_bytes=said.optional_count("disk_free_bytes"),
        load_1m=said.optional_number("load_1m"),
    )


def read_exec(said: Fields) -> ExecRecord:
    """A record of a command. An ended one without a true ending is nonsense, never a zero."""
    outcome = _outcome(said)
    exit_code = said.optional_count("exit_code")
    signal = said.optional_text("signal", limit=32)
    if (exit_code is not None) is not (outcome is Outcome.EXITED):
        raise nonsense("exit_code")
    if exit_code is not None and exit_code > _MAX_EXIT_CODE:
        raise nonsense("exit_code")
    if outcome is Outcome.SIGNALED and not signal:
        raise nonsense("signal")
    reason = said.optional_text("reason", limit=32)
    return ExecRecord(
        exec_id=said.text("exec_id", limit=128),
        outcome=outcome,
        exit_code=exit_code,
        signal=signal,
        reason=_REASONS.get(reason) if reason else None,
        detail=said.optional_text("detail", limit=65536),
        oom_kills=said.count("oom_kills", default=0),
        host_short=said.flag("host_short"),
        from_inside=said.flag("from_inside"),
        stdout=_kept(said.inner("stdout")),
        stderr=_kept(said.inner("stderr")),
        output_dropped=said.flag("output_dropped"),
        duration_s=said.seconds("duration_s"),
        started_at=said.number("started_at"),
        survivors=said.flag("survivors"),
        shell_ended=said.flag("shell_ended"),
        interrupted=said.flag("interrupted"),
    )


def _outcome(said: Fields) -> Outcome | None:
    state = said.text("state", limit=16)
    name = said.optional_text("outcome", limit=16)
    if state == "running" and name is None:
        return None
    if state == "ended" and name in _OUTCOMES:
        return _OUTCOMES[name]
    raise nonsense("outcome")


def _kept(said: Fields) -> Kept:
    total = said.count("bytes")
    head = said.base64("head_b64")
    tail = said.base64("tail_b64")
    gap = said.count("gap_bytes", default=0)
    if len(head) + len(tail) + gap > total:
        raise nonsense("bytes")
    return Kept(total, head, tail, gap)


def read_shell(said: Fields) -> Shell:
    """A shell as it is now."""
    try:
        state = ShellState(said.text("state", limit=16))
    except ValueError:
        raise nonsense("state") from None
    return Shell(
        shell_id=said.text("shell_id", limit=128),
        state=state,
        program=said.optional_text("shell") or "",
    )


def read_file(said: Fields) -> FileInfo:
    """One entry of the file system."""
    try:
        kind = FileType(said.text("type", limit=16))
    except ValueError:
        raise nonsense("type") from None
    name_b64 = said.optional_text("name_b64")
    if name_b64 is not None:
        _check_base64(name_b64)
    return FileInfo(
        path=said.text("path"),
        name=said.text("name"),
        type=kind,
        size=said.count("size"),
        mode=said.count("mode"),
        user=said.text("user"),
        group=said.text("group"),
        modified_at=said.number("modified_at"),
        name_b64=name_b64,
        target=said.optional_text("target"),
        after=said.base64("after_b64") or None,
    )


def read_unpacked(body: bytes) -> Unpacked:
    """What an archive brought."""
    said = loads(body)
    return Unpacked(files=said.count("files"), bytes=said.count("bytes"))


def _check_base64(text: str) -> None:
    try:
        binascii.a2b_base64(text, strict_mode=True)
    except (ValueError, binascii.Error):
        raise nonsense("name_b64") from None


def _b64(data: bytes) -> str:
    return b64encode(data).decode("ascii")
