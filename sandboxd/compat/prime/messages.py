"""The messages of `command_session.CommandSession`, read and written. Pure."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from sandboxd.compat.connect.protobuf import Fields, blob, sint, uint
from sandboxd.model.command import TerminalSize

_SIGNALS = {15: "TERM", 9: "KILL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """What to run. session: the caller's own name for it, empty where it is not to be found again.

    cwd and user are None where they are not said.
    """

    argv: tuple[str, ...]
    env: dict[str, str] = field(repr=False)
    cwd: str | None
    user: str | None
    tty: TerminalSize | None
    stdin: bool
    session: str


@dataclass(frozen=True, slots=True)
class Selector:
    """Which session is meant: by its own name, or by the number that we gave it."""

    session: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRequest:
    """Bytes for a session's input. input_id: the same for the same bytes sent again; may be empty.

    selector None: of a stream that has said before whom it means.
    """

    selector: Selector | None
    data: bytes
    input_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRequest:
    """A signal for a session. signal_id: the same for the same signal sent again; may be empty."""

    selector: Selector
    signal: str
    signal_id: str


def read_start(message: bytes) -> StartRequest:
    """Raises ValueError, as all readers here do, for what is not such a message."""
    said = Fields(message)
    command = said.inner(1)
    if not command.text(1):
        msg = "command.cmd: name a program"
        raise ValueError(msg)
    return StartRequest(
        argv=(command.text(1), *command.texts(2)),
        env=command.mapping(3),
        cwd=command.text(4) if 4 in command else None,
        user=command.text(5) if 5 in command else None,
        tty=_size(said.inner(2)) if 2 in said else None,
        stdin=bool(said.number(4)),
        session=said.text(5),
    )


def read_selector(message: bytes) -> Selector:
    """Of a request that names a session first: Connect, SendInput, SendSignal, Update."""
    said = Fields(message).inner(1)
    selector = Selector(session=said.text(3), pid=said.number(1))
    if not selector.session and not selector.pid:
        msg = "session: name one, by session_uuid or pid"
        raise ValueError(msg)
    return selector


def read_input(message: bytes) -> InputRequest:
    """SendInput."""
    said = Fields(message)
    return InputRequest(
        selector=read_selector(message), data=_input(said.inner(2)), input_id=said.text(3)
    )


def read_stream_input(message: bytes) -> InputRequest | None:
    """One message of StreamInput: who is meant, bytes, or a sign of life (None)."""
    said = Fields(message)
    if 1 in said:
        return InputRequest(selector=read_selector(said.data(1)), data=b"", input_id="")
    if 2 in said:
        return InputRequest(selector=None, data=_input(said.inner(2).inner(1)), input_id="")
    return None


def read_signal(message: bytes) -> SignalRequest:
    """SendSignal."""
    said = Fields(message)
    name = _SIGNALS.get(said.number(2))
    if name is None:
        msg = f"signal: there are {', '.join(f'SIG{each}' for each in _SIGNALS.values())}"
        raise ValueError(msg)
    return SignalRequest(selector=read_selector(message), signal=name, signal_id=said.text(3))


def read_size(message: bytes) -> TerminalSize:
    """Update: the terminal's size, which is all that can be changed."""
    said = Fields(message)
    if 2 not in said:
        msg = "pty: give the terminal's size"
        raise ValueError(msg)
    return _size(said.inner(2))


def _input(said: Fields) -> bytes:
    return said.data(2) if 2 in said else said.data(1)


def _size(pty: Fields) -> TerminalSize:
    size = pty.inner(1)
    cols, rows = size.number(1) or 80, size.number(2) or 24
    if cols > 65535 or rows > 65535:
        msg = "pty.size: rows and cols are at most 65535"
        raise ValueError(msg)
    return TerminalSize(rows=rows, cols=cols)


def pid_of(exec_id: str) -> int:
    """A number for a session, the same for as long as it is known: our commands have names."""
    return zlib.crc32(exec_id.encode()) >> 1 | 1


def started(pid: int) -> bytes:
    """Every answer to Start and Connect begins with it."""
    return blob(1, blob(1, uint(1, pid)))


_OUTPUTS = {"stdout": 1, "stderr": 2, "pty": 3}


def output(stream: str, data: bytes) -> bytes:
    """A piece of `stdout`, `stderr` or `pty`."""
    return blob(1, blob(2, blob(_OUTPUTS[stream], data)))


def ended(*, exit_code: int, exited: bool, status: str, error: str = "") -> bytes:
    """How it ended. exit_code: a shell's number."""
    told = sint(1, exit_code) + uint(2, exited) + blob(3, status)
    return blob(1, blob(3, told + (blob(4, error) if error else b"")))


def alive() -> bytes:
    """Nothing happened for a while."""
    return blob(1, blob(4, b""))


def listed(sessions: dict[int, str]) -> bytes:
    """List: sessions by their numbers."""
    return b"".join(
        blob(1, blob(1, b"") + uint(2, pid) + (blob(4, name) if name else b""))
        for pid, name in sessions.items()
    )
