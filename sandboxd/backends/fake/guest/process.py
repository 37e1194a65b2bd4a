"""What a scripted program sees of its sandbox: arguments, streams, files, children."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import anyio
import anyio.lowlevel

from sandboxd.backends.fake.guest.tree import FileTree, absolute


class Died(Exception):
    """A program was ended by a signal, like `KILL`, which nobody outside sent."""

    def __init__(self, signal: str) -> None:
        super().__init__(signal)
        self.signal = signal


class Source(Protocol):
    """Where a program reads."""

    async def read(self, limit: int) -> bytes:
        """Some bytes, at most `limit`; empty at the end."""
        ...


class Sink(Protocol):
    """Where a program writes."""

    async def write(self, data: bytes) -> None:
        """Take all; may wait. Raises Died("PIPE") when nobody reads any more."""
        ...


class Nothing:
    """An input that is at its end, an output that is thrown away."""

    async def read(self, limit: int) -> bytes:
        """The end."""
        await anyio.lowlevel.checkpoint()
        return b""

    async def write(self, data: bytes) -> None:
        """Thrown away."""
        await anyio.lowlevel.checkpoint()


class Bytes:
    """An input that was given whole."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self, limit: int) -> bytes:
        """The next bytes."""
        await anyio.lowlevel.checkpoint()
        piece, self._data = self._data[:limit], self._data[limit:]
        return piece


class Captured:
    """An output that is collected, as `$(…)` does."""

    def __init__(self) -> None:
        self.data = b""

    async def write(self, data: bytes) -> None:
        """Collect."""
        await anyio.lowlevel.checkpoint()
        self.data += data


class Pipe:
    """What joins two programs."""

    def __init__(self) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[bytes](2)
        self._rest = b""

    async def read(self, limit: int) -> bytes:
        """Some bytes; empty once the writer has closed its end."""
        try:
            self._rest = self._rest or await self._receive.receive()
        except anyio.EndOfStream:
            return b""
        piece, self._rest = self._rest[:limit], self._rest[limit:]
        return piece

    async def write(self, data: bytes) -> None:
        """Hand over; waits for a slow reader."""
        if not data:
            return
        try:
            await self._send.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise Died("PIPE") from None

    def close_write(self) -> None:
        """The reader is to see the end."""
        self._send.close()

    def close_read(self) -> None:
        """The writer is to die of it."""
        self._receive.close()


@dataclass(frozen=True, slots=True)
class FileSink:
    """A file that is written to."""

    files: FileTree
    path: bytes

    async def write(self, data: bytes) -> None:
        """Append."""
        await anyio.lowlevel.checkpoint()
        self.files.write(self.path, self.files.file(self.path).data + data)


class Family(Protocol):
    """The processes of one command."""

    def spawn(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run something beside, until it ends or the whole family is killed."""
        ...


@dataclass(slots=True)
class Process:
    """One running program. Programs return their exit code, or raise Died."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    stdin: Source
    stdout: Sink
    stderr: Sink
    files: FileTree
    family: Family
    pid: int = 2
    programs: Mapping[str, Program] = field(default_factory=dict)

    async def out(self, text: str | bytes) -> None:
        """Write to stdout."""
        await self.stdout.write(text.encode() if isinstance(text, str) else text)

    async def err(self, text: str | bytes) -> None:
        """Write to stderr."""
        await self.stderr.write(text.encode() if isinstance(text, str) else text)

    async def read_all(self) -> bytes:
        """All of stdin."""
        pieces = []
        while piece := await self.stdin.read(65536):
            pieces.append(piece)
        return b"".join(pieces)

    def path(self, name: str) -> bytes:
        """A path of the tree, from the program's own directory."""
        return absolute(name.encode("utf-8", "surrogateescape"), self.cwd.encode())


Program = Callable[[Process], Awaitable[int]]
