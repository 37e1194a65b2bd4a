"""The file calls of the protocol, over the tree in memory."""

from __future__ import annotations

import base64
import gzip
import io
import itertools
import json
import tarfile
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, ClassVar

from sandboxd.backends.fake.guest.refusals import Refusal
from sandboxd.backends.fake.guest.server import Reply, Request, json_reply
from sandboxd.backends.fake.guest.surroundings import check_user
from sandboxd.backends.fake.guest.tree import Directory, File, FileTree, Link, Place, absolute

_CHUNK_BYTES = 65536


class FileCalls:
    """Answers `/v1/files…`."""

    def __init__(self, files: FileTree) -> None:
        self._files = files

    async def answer(self, request: Request) -> Reply:
        """Any of them. Raises Refusal."""
        check_user(request.query.get("user", ""))
        call = self._CALLS.get((request.method, *request.parts[1:]))
        if call is None:
            raise Refusal("not_found", "there is no such call")
        return await call(self, request)

    async def _read(self, request: Request) -> Reply:
        data = self._files.file(_path(request)).data
        offset = int(request.number("offset", 0))
        limit = int(request.number("limit", len(data)))
        part = data[offset : offset + limit]
        headers = [("x-file-size", str(len(data))), ("content-length", str(len(part)))]
        return Reply(200, _chunks(part), headers)

    async def _write(self, request: Request) -> Reply:
        path = absolute(_path(request), self._files.workdir)
        place = self._files.find(path) if self._parent_exists(path) else None
        if place is not None and isinstance(place.node, Directory):
            raise Refusal("file_is_directory", "the path is a directory")
        data = await _whole(request)
        mode = int(request.query["mode"], 8) if "mode" in request.query else None
        self._files.make_directory(path.rpartition(b"/")[0] or b"/", parents=True)
        place, new = self._files.write(path, data, mode=mode)
        return json_reply(told(place), status=201 if new else 200)

    def _parent_exists(self, path: bytes) -> bool:
        try:
            return isinstance(self._files.node(path.rpartition(b"/")[0] or b"/"), Directory)
        except Refusal as refusal:
            if refusal.code == "file_not_found":
                return False
            raise

    async def _delete(self, request: Request) -> Reply:
        self._files.remove(_path(request), recursive=request.query.get("recursive") == "1")
        return Reply(204)

    async def _stat(self, request: Request) -> Reply:
        place = self._files.find(_path(request), follow=request.query.get("follow") != "0")
        if place.node is None:
            raise Refusal("file_not_found", "there is no such file")
        return json_reply(told(place))

    async def _list(self, request: Request) -> Reply:
        path, recursive = _path(request), request.query.get("recursive") == "1"
        self._files.directory(path)
        limit = int(request.number("limit", 0)) or None
        behind = base64.b64decode(request.query.get("after_b64", "")).split(b"/")
        skip = len(self._files.find(path).path.rstrip(b"/")) + 1

        def lines() -> Iterator[bytes]:
            places = self._files.entries(path, recursive=recursive)
            rest = (p for p in places if limit is None or p.path[skip:].split(b"/") > behind)
            for place in itertools.islice(rest, limit):
                said = told(place)
                if limit is not None:
                    said["after_b64"] = base64.b64encode(place.path[skip:]).decode()
                yield json.dumps(said).encode() + b"\n"

        return Reply(200, lines())

    async def _mkdir(self, request: Request) -> Reply:
        order = await request.json()
        check_user(order.get("user", ""))
        path = str(order.get("path", "")).encode()
        _check(path)
        place = self._files.make_directory(
            path, mode=order.get("mode") or 0o755, parents=bool(order.get("parents"))
        )
        return json_reply(told(place))

    async def _move(self, request: Request) -> Reply:
        order = await request.json()
        check_user(order.get("user", ""))
        source, target = str(order.get("from", "")).encode(), str(order.get("to", "")).encode()
        _check(source)
        _check(target)
        overwrite = bool(order.get("overwrite", True))
        return json_reply(told(self._files.move(source, target, overwrite=overwrite)))

    async def _pack(self, request: Request) -> Reply:
        path = _path(request)
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            root = self._files.find(path).path.rstrip(b"/")
            for place in self._files.entries(path, recursive=True):
                _pack_one(tar, place, place.path[len(root) + 1 :])
        return Reply(200, _chunks(out.getvalue()), [("content-type", "application/x-tar")])

    async def _unpack(self, request: Request) -> Reply:
        data = await _whole(request)
        if request.headers.get("content-encoding") == "gzip":
            data = _gunzip(data)
        base = absolute(_path(request), self._files.workdir)
        self._files.make_directory(base, parents=True)
        count = size = 0
        try:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
                for member in tar:
                    count += 1
                    size += self._unpack_one(tar, member, base)
        except tarfile.TarError as error:
            raise Refusal("bad_request", f"this is no tar: {error}") from error
        return json_reply({"files": count, "bytes": size})

    def _unpack_one(self, tar: tarfile.TarFile, member: tarfile.TarInfo, base: bytes) -> int:
        name = member.name.encode("utf-8", "surrogateescape")
        path = _within(base, name, base)
        self._check_parents(base, path)
        self._files.make_directory(path.rpartition(b"/")[0] or b"/", parents=True)
        if member.isdir():
            self._files.make_directory(path, mode=member.mode, parents=True)
        elif member.issym():
            target = member.linkname.encode("utf-8", "surrogateescape")
            _within(path.rpartition(b"/")[0] or b"/", target, base)
            self._files.link(path, target)
        elif member.isreg():
            source = tar.extractfile(member)
            data = source.read() if source is not None else b""
            self._files.write(path, data, mode=member.mode)
            return len(data)
        else:
            raise Refusal("bad_request", f"{member.name} is neither file, directory nor link")
        return 0

    def _check_parents(self, base: bytes, path: bytes) -> None:
        """No part of a member's path may be a link that leaves the target."""
        names = path[len(base) :].strip(b"/").split(b"/")
        for depth in range(1, len(names) + 1):
            part = base + b"/" + b"/".join(names[:depth])
            try:
                node = self._files.node(part, follow=False)
            except Refusal:
                return
            if isinstance(node, Link):
                _within(part.rpartition(b"/")[0] or b"/", node.target, base)

    _CALLS: ClassVar[dict[tuple[str, ...], Call]] = {
        ("GET",): _read,
        ("PUT",): _write,
        ("DELETE",): _delete,
        ("GET", "stat"): _stat,
        ("GET", "list"): _list,
        ("POST", "mkdir"): _mkdir,
        ("POST", "move"): _move,
        ("GET", "archive"): _pack,
        ("PUT", "archive"): _unpack,
    }


Call = Callable[[FileCalls, Request], Awaitable[Reply]]


def told(place: Place) -> dict[str, Any]:
    """One entry in JSON."""
    node = place.node
    if node is None:
        raise Refusal("file_not_found", "there is no such file")
    said: dict[str, Any] = {
        "path": place.path.decode(errors="replace"),
        "name": place.name.decode(errors="replace"),
        "type": {File: "file", Directory: "directory", Link: "link"}[type(node)],
        "size": len(node.data) if isinstance(node, File) else 0,
        "mode": node.mode,
        "user": "root",
        "group": "root",
        "modified_at": node.modified_at,
    }
    if said["name"].encode() != place.name:
        said["name_b64"] = base64.b64encode(place.name).decode()
    if isinstance(node, Link):
        said["target"] = node.target.decode(errors="replace")
    return said


def _path(request: Request) -> bytes:
    if "path_b64" in request.query:
        path = base64.b64decode(request.query["path_b64"])
    else:
        path = request.query.get("path", "").encode()
    _check(path)
    return path


def _check(path: bytes) -> None:
    if not path or b"\0" in path:
        raise Refusal("bad_request", "a path is empty or holds a NUL")


def _within(start: bytes, name: bytes, base: bytes) -> bytes:
    """A path that stays below `base`, by its text. Raises Refusal."""
    full = absolute(name, start)
    if name.startswith(b"/") or not (full + b"/").startswith(base.rstrip(b"/") + b"/"):
        raise Refusal("bad_request", f"{name.decode(errors='replace')} leaves the target")
    return full


def _pack_one(tar: tarfile.TarFile, place: Place, name: bytes) -> None:
    member = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
    node = place.node
    if node is None:
        return
    member.mode, member.mtime = node.mode, int(node.modified_at)
    if isinstance(node, File):
        member.size = len(node.data)
        tar.addfile(member, io.BytesIO(node.data))
        return
    if isinstance(node, Link):
        member.type = tarfile.SYMTYPE
        member.linkname = node.target.decode("utf-8", "surrogateescape")
    else:
        member.type = tarfile.DIRTYPE
    tar.addfile(member)


def _gunzip(data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except (OSError, EOFError) as error:
        raise Refusal("bad_request", "the body is not gzip") from error


async def _whole(request: Request) -> bytes:
    return b"".join([piece async for piece in request.body])


def _chunks(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _CHUNK_BYTES):
        yield data[start : start + _CHUNK_BYTES]
