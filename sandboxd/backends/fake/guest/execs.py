"""The commands of a fake guest: create-or-attach, deadlines, signals, records, bounded output."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskGroup

from sandboxd.backends.fake.guest.journal import STREAMS, Journal
from sandboxd.backends.fake.guest.process import Bytes, Died, Nothing, Source
from sandboxd.backends.fake.guest.refusals import Refusal
from sandboxd.backends.fake.guest.starting import CannotStart
from sandboxd.backends.fake.guest.stdin import Stdin
from sandboxd.backends.fake.terminal import Terminal

MAX_KEPT_BYTES = 64 << 20
MAX_RECORDS = 10_000
_HARMLESS = {"CHLD", "CONT", "URG", "WINCH"}
_FATAL = {"HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "PIPE", "ALRM", "TERM", "ABRT", "STOP"}

Clock = Callable[[], float]


class JournalSink:
    """One output stream of a command."""

    def __init__(self, journal: Journal, stream: str) -> None:
        self._journal = journal
        self._stream = stream

    async def write(self, data: bytes) -> None:
        """Into the journal; waits for attached readers."""
        await self._journal.write(self._stream, data)


@dataclass(eq=False)
class Exec:
    """One command and its record."""

    exec_id: str
    fingerprint: str
    journal: Journal
    group: TaskGroup
    started_at: float
    began: float
    stdin: Stdin | None = None
    outcome: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    reason: str | None = None
    from_inside: bool = False
    detail: str | None = None
    ended_after_s: float | None = None
    shell_ended: bool = False
    interrupted: bool = False
    sent: str | None = None  # the signal that a caller sent and that ends it
    typed: str | None = None  # the signal that a key of its terminal sent
    settled: anyio.Event = field(default_factory=anyio.Event)  # started, or could not be
    ended: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    descendants: set[anyio.CancelScope] = field(default_factory=set)

    def spawn(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run a child beside, until it ends or the tree is killed."""
        scope = anyio.CancelScope()
        self.descendants.add(scope)

        async def child() -> None:
            try:
                with scope:
                    await run()
            finally:
                self.descendants.discard(scope)

        self.group.start_soon(child, name=f"child of {self.exec_id}")

    def kill_tree(self, signal: str) -> bool:
        """End it and all its descendants, as a caller wants it. False: it had ended."""
        running = self.outcome is None
        self.sent = self.sent or (signal if running else None)
        self.scope.cancel()
        self.kill_descendants()
        return running

    def interrupt(self) -> None:
        """End it and its descendants, as the key of its terminal does."""
        if self.outcome is None and self.sent is None:
            self.typed = "INT"
            self.scope.cancel()
            self.kill_descendants()

    def kill_descendants(self) -> None:
        """End what lives beside the main process."""
        for scope in list(self.descendants):
            scope.cancel()

    def source(self, order: Mapping[str, Any]) -> Source:
        """Its input, as the order has it."""
        first = base64.b64decode(order.get("stdin_b64") or "")
        if order.get("tty") is not None:
            show = JournalSink(self.journal, "stdout").write
            self.stdin = Terminal(order, first, show=show, interrupt=self.interrupt)
            return self.stdin
        if not order.get("stdin_open"):
            return Bytes(first) if first else Nothing()
        self.stdin = Stdin(first)
        return self.stdin

    def end(self, outcome: str, *, now: float) -> None:
        """Write the record's end. Only the first one counts."""
        if self.outcome is not None:
            return
        self.journal.finish()
        if self.stdin is not None:
            self.stdin.close()
        self.outcome = outcome
        self.ended_after_s = now - self.began
        self.settled.set()
        self.ended.set()

    def record(self, *, now: float, output: bool) -> dict[str, Any]:
        """It in JSON."""
        said: dict[str, Any] = {
            "exec_id": self.exec_id,
            "state": "running" if self.outcome is None else "ended",
            "outcome": self.outcome,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "reason": self.reason,
            "detail": self.detail,
            "oom_kills": 0,
            "output_dropped": self.journal.output_dropped,
            "duration_s": now - self.began if self.ended_after_s is None else self.ended_after_s,
            "started_at": self.started_at,
            "survivors": self.outcome is not None and bool(self.descendants),
        }
        said |= {stream: self._kept(stream, output=output) for stream in STREAMS}
        if self.from_inside:
            said["from_inside"] = True
        if self.shell_ended:
            said["shell_ended"] = True
        if self.interrupted:
            said["interrupted"] = True
        return said

    def _kept(self, stream: str, *, output: bool) -> dict[str, Any]:
        kept = self.journal.kept[stream]
        head, tail, gap = kept.ends()
        if not output:
            return {"bytes": kept.total, "gap_bytes": gap}
        return {
            "bytes": kept.total,
            "head_b64": base64.b64encode(head).decode(),
            "tail_b64": base64.b64encode(tail).decode(),
            "gap_bytes": gap,
        }


Main = Callable[[Exec], Awaitable[int]]


class Execs:
    """All commands of one box by id, in the order in which they came."""

    def __init__(self, group: TaskGroup, *, wall: Clock) -> None:
        self._group = group
        self._wall = wall
        self._all: dict[str, Exec] = {}
        self.last_end = anyio.current_time()

    def __iter__(self) -> Any:
        """The commands, newest first."""
        return iter(list(self._all.values())[::-1])

    def get(self, exec_id: str) -> Exec:
        """One of them. Raises Refusal."""
        try:
            return self._all[exec_id]
        except KeyError:
            raise Refusal("not_found", f"there is no command {exec_id}") from None

    def running(self) -> list[Exec]:
        """Those that have not ended."""
        return [command for command in self._all.values() if command.outcome is None]

    def known(self, exec_id: str, fingerprint: str) -> Exec | None:
        """The command of that id, if it is this one. Raises Refusal if it is another."""
        known = self._all.get(exec_id)
        if known is not None and known.fingerprint != fingerprint:
            raise Refusal("conflict", f"{exec_id} is another command")
        return known

    def start(self, order: Mapping[str, Any], main: Main) -> Exec:
        """Begin a new command: `main` runs in it until it ends or its time is over."""
        command = Exec(
            exec_id=order["exec_id"],
            fingerprint=order["fingerprint"],
            journal=Journal(int(order.get("output_limit_bytes") or 1 << 20)),
            group=self._group,
            started_at=self._wall(),
            began=anyio.current_time(),
        )
        self._all[command.exec_id] = command
        self._group.start_soon(
            self._run, command, main, order.get("timeout_s"), name=f"command {command.exec_id}"
        )
        return command

    def forget_all(self) -> None:
        """Drop every record; none of them runs."""
        self._all.clear()

    def kill_all(self) -> int:
        """End every command and what ended ones left."""
        return sum([command.kill_tree("KILL") for command in self._all.values()])

    async def _run(self, command: Exec, main: Main, timeout_s: float | None) -> None:
        if timeout_s is not None:
            command.scope.deadline = command.began + timeout_s
        outcome = "lost"
        with command.scope:
            outcome = await self._to_its_end(command, main)
        if command.scope.cancelled_caught:
            outcome = "timeout" if command.sent is None else "killed"
            outcome = "signaled" if command.typed else outcome
            command.signal = command.typed or command.sent or "KILL"
            command.kill_descendants()
        self.last_end = anyio.current_time()
        command.end(outcome, now=self.last_end)
        self._bound()

    async def _to_its_end(self, command: Exec, main: Main) -> str:
        try:
            command.exit_code = (await main(command)) & 255
        except Died as death:
            command.signal = death.signal
            return "signaled"
        except CannotStart as failure:
            command.reason, command.detail = failure.reason, failure.detail
            command.from_inside = failure.from_inside
            return "start_failed"
        return "exited"

    def _bound(self) -> None:
        ended = [command for command in self._all.values() if command.outcome is not None]
        kept = sum(command.journal.size() for command in ended)
        for command in ended:
            if kept <= MAX_KEPT_BYTES:
                break
            kept -= command.journal.size()
            command.journal.forget()
        for command in ended[: max(0, len(ended) - MAX_RECORDS)]:
            del self._all[command.exec_id]


def check_signal(name: object) -> str:
    """A signal's name. Raises Refusal."""
    if not isinstance(name, str) or name not in _HARMLESS | _FATAL:
        raise Refusal("bad_request", f"there is no signal {name!r}")
    return name


def deliver(command: Exec, name: str) -> bool:
    """Signal a command. False: it had ended."""
    if command.outcome is not None:
        return False
    if name in _HARMLESS or name == "STOP":
        return True
    return command.kill_tree(name)
