"""Files inside a sandbox: read, written and listed by its guest, with the rights of its user."""

from __future__ import annotations

import json
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from math import inf
from urllib.parse import quote

import anyio

from sandboxd.guest.fields import loads, nonsense
from sandboxd.guest.line import GuestLost, Line, drop
from sandboxd.guest.messages import read_file, read_unpacked
from sandboxd.model.files import FileInfo, Unpacked
from sandboxd.wire.http1 import AsyncConnection, AsyncResponse, ConnectionLost, Headers

_MAX_LIST_LINE_BYTES = 1 << 16
STALL_S = 30.0  # a guest that gives and takes nothing for so long is frozen

Body = bytes | AsyncIterator[bytes]


class FileBody:
    """The bytes of a file, or a part of them, as they come.

    size: how many will come. total_size: of the whole file when it was opened.
    """

    def __init__(self, response: AsyncResponse, *, size: int, total_size: int) -> None:
        self._response = response
        self.size = size
        self.total_size = total_size

    def chunks(self) -> AsyncIterator[bytes]:
        """The bytes in pieces. Raises GuestLost if they are cut short."""
        return _Pieces(self._response)


class FileList(AsyncIterator[FileInfo]):
    """What is in a directory, one by one; asked for when the first is wanted.

    Raises as `GuestFiles` does. Close it if you leave it before its end.
    """

    def __init__(self, line: Line, target: str) -> None:
        self._line = line
        self._target = target
        self._opened: tuple[AsyncConnection, AsyncResponse] | None = None
        self._lines: deque[bytes] = deque()
        self._rest = b""

    async def __anext__(self) -> FileInfo:
        """The next entry."""
        try:
            if self._opened is None:
                self._opened = await self._line.open("GET", self._target)
            while not self._lines:
                await self._read(self._opened)
            return read_file(loads(self._lines.popleft()))
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Let go of the line. Idempotent, never waits."""
        if self._opened is not None:
            await self._line.keep(self._opened[0])

    async def _read(self, opened: tuple[AsyncConnection, AsyncResponse]) -> None:
        piece = await _next_piece(opened[1])
        if not piece:
            if self._rest:
                raise nonsense("list")
            raise StopAsyncIteration
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > _MAX_LIST_LINE_BYTES:
            raise nonsense("list")
        self._lines.extend(lines)


class GuestFiles:
    """Acts on files. Paths are the sandbox's own; relative ones start at the workdir.

    path as bytes names what is not UTF-8. user: with whose rights, "" for the claim's.
    All raise SandboxdError (`file_…`, `name_too_long`, `disk_full`, `bad_request`) and GuestLost;
    those that stream TimeoutError, too, for a guest that stands still for `STALL_S` seconds, but
    never for a caller who does.
    """

    def __init__(self, line: Line) -> None:
        self._line = line

    @asynccontextmanager
    async def read(
        self, path: str | bytes, *, offset: int = 0, limit: int | None = None, user: str = ""
    ) -> AsyncIterator[FileBody]:
        """Open a file for reading `limit` bytes from `offset`. Leaving early closes the line."""
        query = _query(path, user=user, offset=str(offset) if offset else "")
        if limit is not None:
            query += f"&limit={limit}"
        with anyio.fail_after(STALL_S):
            connection, response = await self._line.open("GET", f"/v1/files?{query}")
        try:
            size = _length(response, b"content-length")
            yield FileBody(response, size=size, total_size=_length(response, b"x-file-size"))
        except BaseException:
            await drop(connection)
            raise
        await self._line.keep(connection)

    async def write(
        self,
        path: str | bytes,
        body: Body,
        *,
        size: int | None = None,
        mode: int | None = None,
        user: str = "",
    ) -> tuple[FileInfo, bool]:
        """Write a whole file, atomically, parents made; says also whether it is new.

        size: of an iterated body, where it is known. Cut or cancelled: the old file stands.
        """
        query = _query(path, user=user, mode="" if mode is None else f"{mode:o}")
        target = f"/v1/files?{query}"
        framing = _framing(body, size)
        with _taken(body) as paced:
            connection, response = await self._line.open("PUT", target, framing, paced)
            answer = await self._line.finish(connection, response)
        return read_file(loads(answer)), response.status == 201

    async def stat(self, path: str | bytes, *, follow: bool = True, user: str = "") -> FileInfo:
        """What stands at a path; of a link itself if not `follow`."""
        query = _query(path, user=user, follow="" if follow else "0")
        return read_file(loads((await self._line.call("GET", f"/v1/files/stat?{query}")).body))

    def list(self, path: str | bytes, *, recursive: bool = False, user: str = "") -> FileList:
        """What is in a directory, and below it if `recursive`, in no order."""
        query = _query(path, user=user, recursive="1" if recursive else "")
        return FileList(self._line, f"/v1/files/list?{query}")

    def list_page(
        self,
        path: str | bytes,
        *,
        limit: int,
        after: bytes = b"",
        recursive: bool = False,
        user: str = "",
    ) -> FileList:
        """At most `limit` entries in the order of their names, behind the `after` of another."""
        query = _query(
            path,
            user=user,
            recursive="1" if recursive else "",
            limit=str(limit),
            after_b64=b64encode(after).decode(),
        )
        return FileList(self._line, f"/v1/files/list?{query}")

    async def delete(self, path: str | bytes, *, recursive: bool = False, user: str = "") -> None:
        """Remove a file, or a directory: an empty one, or with all in it if `recursive`."""
        query = _query(path, user=user, recursive="1" if recursive else "")
        await self._line.call("DELETE", f"/v1/files?{query}", repeatable=False)

    async def mkdir(
        self, path: str, *, mode: int = 0o755, parents: bool = True, user: str = ""
    ) -> FileInfo:
        """Make a directory. One that is there is `file_exists`, unless `parents`."""
        order = {"path": path, "mode": mode, "parents": parents, "user": user}
        return await self._post("/v1/files/mkdir", order)

    async def move(
        self, source: str, target: str, *, overwrite: bool = True, user: str = ""
    ) -> FileInfo:
        """Rename a file or directory; says what then stands at `target`."""
        order = {"from": source, "to": target, "overwrite": overwrite, "user": user}
        return await self._post("/v1/files/move", order)

    @asynccontextmanager
    async def pack(
        self, path: str | bytes, *, user: str = ""
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """A directory as a tar stream. Leaving early closes the line."""
        query = _query(path, user=user)
        with anyio.fail_after(STALL_S):
            connection, response = await self._line.open("GET", f"/v1/files/archive?{query}")
        try:
            yield _Pieces(response)
        except BaseException:
            await drop(connection)
            raise
        await self._line.keep(connection)

    async def unpack(
        self,
        path: str | bytes,
        body: Body,
        *,
        size: int | None = None,
        gzip: bool = False,
        user: str = "",
    ) -> Unpacked:
        """Write what a tar holds below `path`. Members and links that leave it are refused."""
        headers = _framing(body, size)
        if gzip:
            headers.append((b"content-encoding", b"gzip"))
        target = f"/v1/files/archive?{_query(path, user=user)}"
        with _taken(body) as paced:
            connection, response = await self._line.open("PUT", target, headers, paced)
            answer = await self._line.finish(connection, response)
        return read_unpacked(answer)

    async def _post(self, target: str, order: dict[str, object]) -> FileInfo:
        body = json.dumps(order).encode()
        answer = await self._line.call("POST", target, body, repeatable=False)
        return read_file(loads(answer.body))


def _query(path: str | bytes, **options: str) -> str:
    if isinstance(path, bytes):
        parts = ["path_b64=" + quote(b64encode(path), safe="")]
    else:
        parts = ["path=" + quote(path, safe="/")]
    parts += [f"{name}={quote(value, safe='')}" for name, value in options.items() if value]
    return "&".join(parts)


def _framing(body: Body, size: int | None) -> Headers:
    if isinstance(body, bytes):
        return []
    if size is None:
        return [(b"transfer-encoding", b"chunked")]
    return [(b"content-length", b"%d" % size)]


def _length(response: AsyncResponse, name: bytes) -> int:
    text = response.header(name)
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise nonsense(name.decode())
    return int(text)


class _Pieces(AsyncIterator[bytes]):
    def __init__(self, response: AsyncResponse) -> None:
        self._response = response

    async def __anext__(self) -> bytes:
        if piece := await _next_piece(self._response):
            return piece
        raise StopAsyncIteration


async def _next_piece(response: AsyncResponse) -> bytes:
    try:
        with anyio.fail_after(STALL_S):
            return await response.next_chunk()
    except ConnectionLost as error:
        raise GuestLost(str(error), sent=True) from error


@contextmanager
def _taken(body: Body) -> Iterator[Body]:
    """A body that the guest must take piece by piece, and answer. Raises TimeoutError."""
    with anyio.fail_after(STALL_S) as scope:
        yield body if isinstance(body, bytes) else _Paced(body, scope)


class _Paced(AsyncIterator[bytes]):
    """Pieces for which their taker has `STALL_S` each; their maker has all the time it wants."""

    def __init__(self, pieces: AsyncIterator[bytes], scope: anyio.CancelScope) -> None:
        self._pieces = pieces
        self._scope = scope

    async def __anext__(self) -> bytes:
        self._scope.deadline = inf
        try:
            return await anext(self._pieces)
        finally:
            self._scope.deadline = anyio.current_time() + STALL_S
