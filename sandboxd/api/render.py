"""How nouns look on the wire: plain dictionaries, rendered by one fast JSON writer."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic_core import to_json
from starlette.responses import Response

from sandboxd.backends.protocol import Image
from sandboxd.execution.commands import KeepAlive
from sandboxd.guest.attachment import Ended, Gap, OutputEvent, Piece, Started
from sandboxd.model.command import ExecRecord, Kept
from sandboxd.model.files import FileInfo
from sandboxd.model.lease import Lease
from sandboxd.model.shell import Shell
from sandboxd.model.template import Network
from sandboxd.model.way_out import Forward
from sandboxd.wire.codes import Outcome, Verdict, exec_verdict

Encoding = Literal["text", "base64"]

# The shell's number for clients that know only numbers; a verdict never comes from it.
_STATUS = {Outcome.TIMEOUT: 124, Outcome.OOM: 137, Outcome.KILLED: 137}
_SIGNALS = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9,
    "USR1": 10, "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15, "STKFLT": 16,
    "CHLD": 17, "CONT": 18, "STOP": 19, "TSTP": 20, "TTIN": 21, "TTOU": 22, "URG": 23, "XCPU": 24,
    "XFSZ": 25, "VTALRM": 26, "PROF": 27, "WINCH": 28, "IO": 29, "PWR": 30, "SYS": 31,
}  # fmt: skip


def answer(body: Mapping[str, Any] | Sequence[Any], *, status: int = 200) -> Response:
    """A JSON response. What is no number is null: not every reader of JSON knows it."""
    return Response(
        to_json(body, inf_nan_mode="null"), status_code=status, media_type="application/json"
    )


def network(reached: Network) -> Any:
    """What may be reached, as a lease would ask for it."""
    return {"allow": reached.allow} if reached.kind == "allow" else reached.kind


def forward(noun: Forward, *, ready: bool) -> dict[str, Any]:
    """A forward. ready: false where its headers are not known any more."""
    return {
        "port": noun.port,
        "url": noun.url,
        "header_names": noun.header_names,
        "ready": ready,
    }


def sandbox(
    lease: Lease,
    *,
    limits: Mapping[str, str],
    queue: Any = None,
    proxy_port: int | None = None,
) -> dict[str, Any]:
    """A lease as the public Sandbox. Neither env nor secrets are in it.

    proxy_port: where its guest listens inside, if it leads out.
    """
    terms, usage = lease.terms, lease.usage
    return {
        "id": lease.id,
        "template": terms.template,
        "image": terms.spec.image,
        "state": lease.state,
        "phase": lease.phase,
        "queue": queue,
        "created_at": lease.created_at,
        "leased_at": lease.leased_at,
        "expires_at": lease.expires_at,
        "idle_expires_at": lease.idle_expires_at,
        "run_id": terms.run_id,
        "group_id": terms.group_id,
        "rollout_id": terms.rollout_id,
        "labels": terms.labels,
        "backend": lease.backend,
        "warm": lease.warm,
        "cold_because": terms.cold_because,
        "lease_wait_s": lease.lease_wait_s,
        "limits": limits,
        "endpoint": None,
        "network": network(terms.network),
        "proxy": None if proxy_port is None else f"http://127.0.0.1:{proxy_port}",
        "forwards": {str(each.port): each.url for each in terms.forwards},
        "end": None
        if lease.end is None
        else {
            "reason": lease.end.reason,
            "code": lease.end.code,
            "fault": lease.end.fault,
            "mask": lease.end.mask,
            "detail": lease.end.detail,
            "at": lease.end.at,
        },
        "usage": {
            "cpu_s": usage.cpu_s,
            "memory_peak_bytes": usage.memory_peak_bytes,
            "disk_bytes": usage.disk_bytes,
            "execs": usage.execs,
            "cells": usage.cells,
            "leased_s": usage.leased_s,
            "network_in_bytes": usage.network_in_bytes,
            "network_out_bytes": usage.network_out_bytes,
        },
    }


def execution(
    record: ExecRecord, *, encoding: Encoding = "text", output: bool = True
) -> dict[str, Any]:
    """A record as the public Exec, with its verdict."""
    verdict = verdict_of(record)
    body = {
        "exec_id": record.exec_id,
        "state": "running" if record.outcome is None else "ended",
        "outcome": record.outcome,
        "exit_code": record.exit_code,
        "signal": record.signal,
        "status": status_number(record),
        "fault": verdict and verdict.fault,
        "mask": bool(verdict and verdict.mask),
        "oom_kills": record.oom_kills,
        "stdout_bytes": record.stdout.total_bytes,
        "stderr_bytes": record.stderr.total_bytes,
        "stdout_truncated": record.stdout.gap_bytes > 0,
        "stderr_truncated": record.stderr.gap_bytes > 0,
        "output_dropped": record.output_dropped,
        "duration_s": record.duration_s,
        "started_at": record.started_at,
        "error": None
        if verdict is None or verdict.code is None
        else {
            "code": verdict.code,
            "reason": record.reason,
            "detail": record.detail,
        },
    }
    if record.shell_ended:
        body["shell_ended"] = True
    if record.interrupted:
        body["interrupted"] = True
    if output:
        for name, kept in (("stdout", record.stdout), ("stderr", record.stderr)):
            if encoding == "base64":
                body[f"{name}_b64"] = b64encode(_joined(kept)).decode()
            else:
                body[name] = text_of(kept)
    return body


def verdict_of(record: ExecRecord) -> Verdict | None:
    """None while it runs."""
    if record.outcome is None:
        return None
    return exec_verdict(
        record.outcome,
        reason=record.reason,
        host_short=record.host_short,
        from_inside=record.from_inside,
    )


def status_number(record: ExecRecord) -> int | None:
    """The shell's number; None for `lost` and while it runs."""
    match record.outcome:
        case Outcome.EXITED:
            return record.exit_code
        case Outcome.SIGNALED:
            number = _SIGNALS.get(record.signal or "")
            return None if number is None else 128 + number
        case Outcome.START_FAILED:
            return 127 if record.reason == "not_found" else 126
        case None:
            return None
        case outcome:
            return _STATUS.get(outcome)


def _mark(kept: Kept) -> bytes:
    missing = kept.total_bytes - len(kept.head) - len(kept.tail)
    return b"\n[... %d bytes not kept ...]\n" % missing


def _joined(kept: Kept) -> bytes:
    if not kept.truncated:
        return kept.head + kept.tail
    return kept.head + _mark(kept) + kept.tail


def text_of(kept: Kept) -> str:
    """The stream as text, undecodable bytes replaced; characters that the cut went through are
    left out rather than shown as broken.
    """
    if not kept.truncated:
        return (kept.head + kept.tail).decode(errors="replace")
    head, tail = _without_broken_end(kept.head), _without_broken_start(kept.tail)
    return (head + _mark(kept) + tail).decode(errors="replace")


def _without_broken_end(data: bytes) -> bytes:
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # the start of the last character
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return data[:-back] if length > back else data
    return data


def _without_broken_start(data: bytes) -> bytes:
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


def _exact_text(data: bytes) -> str | None:
    """The piece as text, where that is what it is; None for bytes, which travel in base64."""
    if b"\0" in data:
        return None  # it may decode, but JSON would spend six characters on each
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def event_line(
    event: OutputEvent | KeepAlive, *, seq: int = 0, encoding: Encoding = "text"
) -> bytes:
    """One line of NDJSON. seq: the number that a sign of life repeats, to go on from."""
    body: dict[str, Any]
    match event:
        case Piece(stream=stream, offset=offset, data=data):
            body = {"seq": event.seq, "type": stream, "stream": stream, "offset": offset}
            text = None if encoding == "base64" else _exact_text(data)
            if text is None:
                body["data_b64"] = b64encode(data).decode()
            else:
                body["data"] = text
        case Gap(stream=stream, offset=offset, size=size):
            body = {"seq": event.seq, "type": "gap", "stream": stream, "offset": offset}
            body["bytes"] = size
        case Started(started_at=started_at):
            body = {"seq": event.seq, "type": "started", "started_at": started_at}
        case Ended(record=record):
            body = {"seq": event.seq, "type": "ended", "exec": execution(record, output=False)}
        case KeepAlive():
            body = {"seq": seq, "type": "keepalive"}
    return to_json(body) + b"\n"


def shell(found: Shell) -> dict[str, Any]:
    """A shell."""
    return {"shell_id": found.shell_id, "state": found.state, "program": found.program}


def image(found: Image) -> dict[str, Any]:
    """An Image."""
    return {
        "reference": found.reference,
        "state": found.state,
        "digest": found.digest,
        "size_bytes": found.size_bytes,
        "used_at": found.used_at,
        "in_use": found.in_use,
        "error": found.error,
        "progress": found.progress,
    }


def file(info: FileInfo) -> dict[str, Any]:
    """A File."""
    body = {
        "path": info.path,
        "name": info.name,
        "type": info.type,
        "size": info.size,
        "mode": info.mode,
        "user": info.user,
        "group": info.group,
        "modified_at": info.modified_at,
    }
    if info.name_b64 is not None:
        body["name_b64"] = info.name_b64
    if info.target is not None:
        body["target"] = info.target
    return body
