"""A template's own commands, run once in a fresh box through its guest before anybody may have it.

Knows no stock and no backend. Whatever goes wrong inside is the task's fault, for no agent has
acted: all but what the host had too little of, and an end that nobody saw.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

import anyio

from sandboxd.backends.protocol import Death
from sandboxd.egress.lent import Lender
from sandboxd.errors import SandboxdError
from sandboxd.guest.client import Guest
from sandboxd.guest.line import GuestLost
from sandboxd.model.command import Command, ExecRecord, Kept
from sandboxd.model.template import Setup
from sandboxd.pool.stock import DiaryEntry
from sandboxd.wire.codes import ErrorCode, Fault, Outcome

_GRACE_S = 15.0  # for the guest to end a command whose time is up, and to say so
_STREAM_BYTES = 8 << 10  # kept of each stream of a command
_DIARY_BYTES = 64 << 10  # kept of all commands together
_TAIL_BYTES = 2 << 10
_SHOWN_CHARS = 200


async def start_together(
    starts: Iterable[tuple[str, Callable[[], Awaitable[DiaryEntry]]]],
) -> tuple[DiaryEntry, ...]:
    """Start all that a box has from the beginning, each by a task of that name; a line for each, in
    their order.

    Raises the first failure, on which the others are given up.
    """
    diary: dict[int, DiaryEntry] = {}
    errors: list[SandboxdError | GuestLost] = []

    async def run(number: int, start: Callable[[], Awaitable[DiaryEntry]]) -> None:
        try:
            diary[number] = await start()
        except (SandboxdError, GuestLost) as error:
            errors.append(error)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for number, (name, start) in enumerate(starts):
            tasks.start_soon(run, number, start, name=name)
    if errors:
        raise errors[0]
    return tuple(diary[number] for number in sorted(diary))


async def set_up(
    guest: Guest, setup: Setup, *, lender: Lender | None = None
) -> tuple[DiaryEntry, ...]:
    """Run the commands in order. Returns a line for each, with output.

    lender: lends the way out that the set-up's network needs; without one there is none.

    Raises `start_failed` with fault task for a command that does not exit with 0 (`details` has
    its status and the end of its output) and for commands that together take too long; with fault
    infra where the guest says nothing; `sandbox_lost` and GuestLost where it is gone. Cancelled or
    failed: the box is not ready and never will be.
    """
    try:
        with anyio.fail_after(setup.timeout_s + _GRACE_S):
            await _begin(guest, setup)
            if lender is None:
                diary = await _run_all(guest, setup, env={})
            else:
                async with lender.lend(guest, setup.network) as env:
                    diary = await _run_all(guest, setup, env=env)
    except TimeoutError as error:
        detail = f"set-up: the guest did not end it within {setup.timeout_s:g} s"
        raise SandboxdError(ErrorCode.START_FAILED, detail) from error
    return tuple(diary)


async def declare_ready(guest: Guest) -> None:
    """Nothing more is done in the box before somebody leases it. Raises as `set_up`."""
    try:
        with anyio.fail_after(_GRACE_S):
            await guest.end_setup()
    except TimeoutError as error:
        detail = f"set-up: the guest did not end it within {_GRACE_S:g} s"
        raise SandboxdError(ErrorCode.START_FAILED, detail) from error


async def _run_all(guest: Guest, setup: Setup, *, env: Mapping[str, str]) -> list[DiaryEntry]:
    """env: what lies below the set-up's own."""
    ends_at = anyio.current_time() + setup.timeout_s
    diary: list[DiaryEntry] = []
    room = _DIARY_BYTES
    below = {name: value for name, value in env.items() if name not in dict(setup.env)}
    for number, text in enumerate(setup.commands, 1):
        left_s = max(0.0, ends_at - anyio.current_time())
        record = await guest.run(_command(text, number, left_s, env=below), wait=True)
        if record.outcome is not Outcome.EXITED or record.exit_code != 0:
            raise _failed(record, setup=setup, number=number)
        entry, used = _entry(record, text=text, room=room)
        room -= used
        diary.append(entry)
    return diary


def died_in_setup(death: Death) -> SandboxdError:
    """What a make is answered whose box died while it was set up."""
    fault = Fault.TASK if death.fault is Fault.AGENT else death.fault
    detail = f"the sandbox died during its set-up ({death.reason}): {death.detail}"
    evidence = {"reason": death.reason, "evidence": dict(death.evidence)}
    return SandboxdError(ErrorCode.START_FAILED, detail, fault=fault, mask=True, details=evidence)


async def _begin(guest: Guest, setup: Setup) -> None:
    try:
        await guest.begin_setup(setup)
    except SandboxdError as error:
        if error.code is ErrorCode.SANDBOX_LOST:
            raise
        # No such user, or a workdir that cannot be made.
        detail = f"set-up: {error.detail}"
        raise _task_failure(detail, details=error.details) from error


def _command(text: str, number: int, left_s: float, *, env: Mapping[str, str]) -> Command:
    return Command(
        exec_id=f"setup-{number}",
        argv=("/bin/sh", "-c", text),
        env=env,
        timeout_s=left_s,
        output_limit_bytes=_STREAM_BYTES,
    )


def _failed(record: ExecRecord, *, setup: Setup, number: int) -> SandboxdError:
    text = setup.commands[number - 1][:_SHOWN_CHARS]
    tail = (_text(record.stdout) + _text(record.stderr))[-_TAIL_BYTES:]
    which = f"set-up command {number} of {len(setup.commands)}"
    said = f": {tail.strip()}" if tail.strip() else ""
    return SandboxdError(
        ErrorCode.START_FAILED,
        f"{which} (`{text}`) {_ending(record, setup)}{said}",
        fault=fault_of(record),
        mask=True,
        details={
            "command": text,
            "number": number,
            "outcome": record.outcome,
            "exit_code": record.exit_code,
            "signal": record.signal,
            "output_tail": tail,
        },
    )


def fault_of(record: ExecRecord) -> Fault:
    """Whose fault it is that a command did not do what it should before anybody has acted."""
    if record.host_short:
        return Fault.INFRA
    return Fault.UNKNOWN if record.outcome is Outcome.LOST else Fault.TASK


def _ending(record: ExecRecord, setup: Setup) -> str:
    match record.outcome:
        case Outcome.EXITED:
            return f"exited with {record.exit_code}"
        case Outcome.TIMEOUT:
            return f"ran when the {setup.timeout_s:g} s of `setup_timeout_s` were over"
        case Outcome.OOM:
            return f"ran out of the {'machine' if record.host_short else 'sandbox'}'s memory"
        case Outcome.START_FAILED:
            return f"could not be started ({record.detail or record.reason})"
        case _:
            return f"ended {record.outcome} ({record.signal})"


def _task_failure(detail: str, *, details: dict[str, object]) -> SandboxdError:
    return SandboxdError(
        ErrorCode.START_FAILED, detail, fault=Fault.TASK, mask=True, details=details
    )


def _entry(record: ExecRecord, *, text: str, room: int) -> tuple[DiaryEntry, int]:
    """A line of the diary, and how many bytes of output are in it; none where they do not fit."""
    used = sum(len(kept.head) + len(kept.tail) for kept in (record.stdout, record.stderr))
    fits = used <= room
    entry = {
        "at": record.started_at,
        "event": "setup",
        "command": text[:_SHOWN_CHARS],
        "exit_code": record.exit_code,
        "duration_s": record.duration_s,
        "stdout": _text(record.stdout) if fits else "",
        "stderr": _text(record.stderr) if fits else "",
        "truncated": record.stdout.truncated or record.stderr.truncated or not fits,
    }
    return entry, used if fits else 0


def _text(kept: Kept) -> str:
    gap = f"\n[{kept.gap_bytes} bytes left out]\n".encode() if kept.gap_bytes else b""
    return (kept.head + gap + kept.tail).decode(errors="replace")
