"""Commands: what is asked for, and the record of how it went, which the guest keeps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandboxd.model.claim import Claim
from sandboxd.wire.codes import Outcome, StartFailure


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """Of a command's terminal, in characters: 1 to 65535 each."""

    rows: int = 24
    cols: int = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run. argv is never touched by a shell; timeout_s None runs until the lease ends.

    tty: it runs on a terminal of that size, whose input is open as long as it runs; all of its
    output is stdout then. standing: a server, whose running is no use of the box by itself.
    expected: stands in for the claim of a box that nobody has claimed yet.
    """

    exec_id: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    user: str = ""
    stdin: bytes | None = None
    stdin_open: bool = False
    tty: TerminalSize | None = None
    timeout_s: float | None = None
    output_limit_bytes: int = 1 << 20
    standing: bool = False
    expected: Claim | None = None

    def fingerprint(self) -> str:
        """Equal for the same command, so that an `exec_id` used for another one is noticed.

        How long it may run and how much is kept are no part of it: whoever attaches again may
        have less time left than whoever started it. Nor is the size of a terminal, which changes.
        """
        stdin = None if self.stdin is None else hashlib.sha256(self.stdin).hexdigest()
        parts: tuple[object, ...] = (
            *(self.argv, sorted(self.env.items()), self.cwd, self.user, stdin),
            *(() if self.tty is None else ("tty",)),
        )
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of one output stream: all of it in `head`, or head and tail around a gap."""

    total_bytes: int = 0
    head: bytes = b""
    tail: bytes = b""
    gap_bytes: int = 0

    @property
    def truncated(self) -> bool:
        """Whether anything of the stream is missing here."""
        return len(self.head) + len(self.tail) < self.total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRecord:
    """How a command went. exit_code: only for `exited`; signal (like `KILL`): for `signaled`.

    host_short: it ended, or could not begin, because the host ran short and not the sandbox.
    from_inside: it could not begin for what something inside the sandbox took away.
    """

    exec_id: str
    outcome: Outcome | None  # None while it runs
    exit_code: int | None = None
    signal: str | None = None
    reason: StartFailure | None = None
    detail: str | None = None
    oom_kills: int = 0
    host_short: bool = False
    from_inside: bool = False
    stdout: Kept = field(default_factory=Kept)
    stderr: Kept = field(default_factory=Kept)
    output_dropped: bool = False
    duration_s: float = 0.0
    started_at: float = 0.0
    survivors: bool = False
    shell_ended: bool = False
    interrupted: bool = False

    def last_words(self, *, most_bytes: int = 2000) -> str:
        """The end of what it wrote to its standard error, for a person."""
        kept = self.stderr.head + self.stderr.tail
        return kept[-most_bytes:].decode(errors="replace").strip()

    @property
    def shows_output(self) -> bool:
        """Whether the kept output is in this record, and not only its size."""
        return all(
            len(kept.head) + len(kept.tail) + kept.gap_bytes >= kept.total_bytes
            for kept in (self.stdout, self.stderr)
        )
