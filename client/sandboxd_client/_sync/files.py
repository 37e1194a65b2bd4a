# Generated from client/sandboxd_client/_async/files.py by scripts/unasync.py.
# Edit the source, then run the script.
"""Files in a sandbox: whole, in chunks, and directories as tar streams.

Relative paths start at the workdir.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from sandboxd.wire.http1_sync import ConnectionLost
from sandboxd_client._core.calls import Call, Query, encode, path_of
from sandboxd_client._core.fields import needed
from sandboxd_client._core.tarballs import file_pieces, store, tar_pieces, unpack
from sandboxd_client._runtime import sio as runtime
from sandboxd_client._sync.api import Api, unreachable
from sandboxd_client._sync.transport import Body
from sandboxd_client.errors import FileNotFound
from sandboxd_client.records import FileInfo

_RAW = "application/octet-stream"
_PIECE_BYTES = 1 << 20
_PAGE = 1000

LocalPath = str | PathLike[str]
Content = bytes | str | BinaryIO | Iterable[bytes]


class Files:
    """The files of one sandbox, touched with the rights of its user (or of `user=`)."""

    def __init__(self, api: Api, *, sandbox_id: str) -> None:
        self._api = api
        self._root = ("sandboxes", sandbox_id, "files")

    def read(
        self, path: str, *, offset: int = 0, limit: int | None = None, user: str | None = None
    ) -> bytes:
        """A file's bytes, from `offset` on and at most `limit`. Raises FileNotFound and its kin."""
        query = {"path": path, "offset": offset or None, "limit": limit, "user": user}
        data, _ = self._api.read(self._get(query))
        return data

    def read_text(self, path: str, *, user: str | None = None) -> str:
        """A file as UTF-8 text, line ends kept. Raises UnicodeDecodeError with the offset."""
        return (self.read(path, user=user)).decode("utf-8")

    def read_chunks(
        self, path: str, *, offset: int = 0, limit: int | None = None, user: str | None = None
    ) -> Generator[bytes, None, None]:
        """A file in chunks as they arrive, in bounded memory.

        Raises FileNotFound and its kin, ApiUnreachable where the line is cut: the file may have
        changed by now, so its halves are not put together. To leave early, use `aclosing`.
        """
        query = {"path": path, "offset": offset or None, "limit": limit, "user": user}
        exchange = self._api.open(self._get(query))
        try:
            while chunk := exchange.response.next_chunk():
                yield chunk
        except ConnectionLost as lost:
            raise unreachable(lost) from lost
        finally:
            exchange.close()

    def write(
        self, path: str, content: Content, *, mode: int | None = None, user: str | None = None
    ) -> FileInfo:
        """Write a file, whole or not at all; parents are made.

        content: bytes, text (as UTF-8), an open binary file, or chunks. mode: permission bits.
        Bytes and text are sent again if the answer is lost; what can be read only once is not.
        """
        query = {"path": path, "mode": _octal(mode), "user": user}
        target = path_of(*self._root, query=query)
        if isinstance(content, str):
            content = content.encode()
        if isinstance(content, bytes):
            call = Call(method="PUT", path=target, body=content, content_type=_RAW, safe=True)
            return FileInfo.from_json(self._api.json(call))
        call = Call(method="PUT", path=target, content_type=_RAW)
        return FileInfo.from_json(self._api.send(call, body=_once(content)))

    def stat(self, path: str, *, follow: bool = True, user: str | None = None) -> FileInfo:
        """What is at a path; a link itself with `follow=False`. Raises FileNotFound and its kin."""
        query = {"path": path, "follow": None if follow else "0", "user": user}
        call = Call(method="GET", path=path_of(*self._root, "stat", query=query), safe=True)
        return FileInfo.from_json(self._api.json(call))

    def exists(self, path: str, *, user: str | None = None) -> bool:
        """Whether something is at that path."""
        try:
            self.stat(path, user=user)
        except FileNotFound:
            return False
        return True

    def list(
        self, path: str = ".", *, recursive: bool = False, user: str | None = None
    ) -> list[FileInfo]:
        """What is in a directory, all of it. Raises FileNotDirectory and its kin."""
        found: list[FileInfo] = []
        cursor: str | None = None
        while True:
            query = {
                "path": path,
                "recursive": recursive or None,
                "user": user,
                "limit": _PAGE,
                "cursor": cursor,
            }
            call = Call(method="GET", path=path_of(*self._root, "list", query=query), safe=True)
            page = self._api.json(call)
            found += [FileInfo.from_json(told) for told in needed(page, "files")]
            cursor = page.get("next_cursor")
            if not cursor:
                return found

    def delete(self, path: str, *, recursive: bool = False, user: str | None = None) -> None:
        """Delete a file, or with `recursive` a directory. Raises FileNotFound and its kin."""
        query = {"path": path, "recursive": recursive or None, "user": user}
        self._api.json(Call(method="DELETE", path=path_of(*self._root, query=query)))

    def mkdir(
        self,
        path: str,
        *,
        mode: int | None = None,
        parents: bool = True,
        user: str | None = None,
    ) -> FileInfo:
        """Make a directory; with `parents` those too, and one that exists is no error."""
        return self._post("mkdir", path=path, mode=mode, parents=parents, user=user)

    def move(
        self, source: str, target: str, *, overwrite: bool = False, user: str | None = None
    ) -> FileInfo:
        """Move or rename. Raises FileExists unless `overwrite`, FileNotFound and its kin."""
        told = {"from": source, "to": target, "overwrite": overwrite, "user": user}
        return self._post("move", **told)

    def upload(self, local: LocalPath, remote: str = ".", *, user: str | None = None) -> None:
        """Bring a local file or directory into the sandbox, in bounded memory.

        A directory's contents land in the directory `remote`. A file lands at `remote`, or in it
        if that ends with a slash. Raises OSError for what is local, typed errors for the rest.
        """
        source = Path(local)
        if not runtime.in_thread(source.is_dir):
            self._upload_file(source, _inside(remote, source.name), user=user)
            return
        call = Call(
            method="PUT",
            path=path_of(*self._root, "archive", query={"path": remote, "user": user}),
            content_type="application/x-tar",
            safe=True,
        )
        self._api.send(call, body=lambda: runtime.Pieces(tar_pieces(source)))

    def download(self, remote: str, local: LocalPath, *, user: str | None = None) -> None:
        """Fetch a file or directory out of the sandbox, in bounded memory.

        A directory's contents land in the directory `local`, which is made. A file lands at
        `local`, or in it if that is a directory or ends with a slash. What the sandbox sends is
        not trusted: UnsafeArchive for a member or link that leaves `local`. Raises OSError for
        what is local, typed errors for the rest.
        """
        seen = self.stat(remote, user=user)
        if seen.type != "directory":
            self._download_file(remote, _place(local, seen.name), user=user)
            return
        query = {"path": remote, "user": user}
        path = path_of(*self._root, "archive", query=query)
        call = Call(method="GET", path=path, accept="application/x-tar", safe=True)

        def once() -> None:
            exchange = self._api.open(call)
            try:
                runtime.pour(exchange.response.next_chunk, lambda r: unpack(r, Path(local)))
            finally:
                exchange.close()

        self._api.trying(call, once)

    def _upload_file(self, source: Path, remote: str, *, user: str | None) -> None:
        mode = (runtime.in_thread(source.stat)).st_mode & 0o777
        query = {"path": remote, "mode": _octal(mode), "user": user}
        target = path_of(*self._root, query=query)
        call = Call(method="PUT", path=target, content_type=_RAW, safe=True)
        self._api.send(call, body=lambda: runtime.Pieces(file_pieces(source)))

    def _download_file(self, remote: str, target: Path, *, user: str | None) -> None:
        """Whole or not at all: what is half-way lies beside the target, removed if it fails."""
        call = self._get({"path": remote, "user": user})
        part = target.with_name(f".{target.name}.part")

        def once() -> None:
            exchange = self._api.open(call)
            try:
                runtime.pour(exchange.response.next_chunk, lambda r: store(r, part))
            finally:
                exchange.close()

        try:
            self._api.trying(call, once)
            runtime.in_thread(part.replace, target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def _get(self, query: Query) -> Call:
        path = path_of(*self._root, query=query)
        return Call(method="GET", path=path, accept="*/*", safe=True)

    def _post(self, verb: str, **body: Any) -> FileInfo:
        given = {name: value for name, value in body.items() if value is not None}
        call = Call(method="POST", path=path_of(*self._root, verb), body=encode(given))
        return FileInfo.from_json(self._api.json(call))


def _octal(mode: int | None) -> str | None:
    return None if mode is None else f"{mode:o}"


def _inside(remote: str, name: str) -> str:
    return remote + name if remote.endswith("/") else remote


def _place(local: LocalPath, name: str) -> Path:
    path = Path(local)
    if runtime.in_thread(path.is_dir) or str(local).endswith(("/", "\\")):
        runtime.in_thread(lambda: path.mkdir(parents=True, exist_ok=True))
        return path / Path(name).name
    return path


def _once(content: BinaryIO | Iterable[bytes]) -> Body:
    """A body of what can be read only once, so never asked for twice."""

    def make() -> Iterator[bytes]:
        if isinstance(content, Iterable):
            return iter(content)
        return runtime.Pieces(iter(lambda: content.read(_PIECE_BYTES), b""))

    return make
