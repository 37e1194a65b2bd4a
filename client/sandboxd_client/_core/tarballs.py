"""Directories as tar streams: made piece by piece, and unpacked without trusting what they say.

The sandbox is hostile. So nothing unpacked here is ever written through a link, and links are made
last and only if they stay inside; devices, sockets and pipes are left out.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol, cast

_PIECE_BYTES = 1 << 20
_BLOCK = tarfile.BLOCKSIZE
_MODE_BITS = 0o777  # set-uid bits and their kin do not travel


class Readable(Protocol):
    """What unpacking reads from."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; empty at the end."""
        ...


class UnsafeArchive(ValueError):
    """A member of the archive would have been written outside the target, or through a link."""


def file_pieces(path: Path) -> Iterator[bytes]:
    """A file's bytes in pieces of 1 MiB. Raises OSError."""
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


def store(source: Readable, path: Path) -> None:
    """Write all of `source` to a file, anew. Raises OSError."""
    with path.open("wb") as file:
        while piece := source.read(_PIECE_BYTES):
            file.write(piece)


def tar_pieces(root: Path) -> Iterator[bytes]:
    """The contents of a directory as a tar stream, in pieces of about 1 MiB; names relative to it.

    Links travel as links. Owners do not travel. Raises OSError, also if a file shrinks meanwhile.
    """
    held = bytearray()
    for path in _walk(root):
        info = _member(path, path.relative_to(root).as_posix())
        if info is None:
            continue
        held += info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        if info.isreg():
            for piece in _exactly(path, info.size):
                held += piece
                if len(held) >= _PIECE_BYTES:
                    yield bytes(held)
                    held.clear()
            held += bytes(-info.size % _BLOCK)
    yield bytes(held) + bytes(2 * _BLOCK)


def _walk(root: Path) -> Iterator[Path]:
    with os.scandir(root) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        path = root / name
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)


def _member(path: Path, name: str) -> tarfile.TarInfo | None:
    info, seen = tarfile.TarInfo(name), path.lstat()
    info.mode, info.mtime = seen.st_mode & _MODE_BITS, int(seen.st_mtime)
    if stat.S_ISREG(seen.st_mode):
        info.size = seen.st_size
    elif stat.S_ISDIR(seen.st_mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(seen.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, path.readlink().as_posix()
    else:
        return None
    return info


def _exactly(path: Path, size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file that may grow meanwhile."""
    with path.open("rb") as file:
        while size > 0:
            piece = file.read(min(_PIECE_BYTES, size))
            if not piece:
                raise OSError(f"{path} became shorter while it was read")
            size -= len(piece)
            yield piece


def unpack(source: Readable, target: Path) -> int:
    """Unpack a tar stream below `target`, which is made. Returns how many files there were.

    Raises UnsafeArchive for a member that leaves the target, tarfile.TarError for one that is no
    tar, OSError.
    """
    target.mkdir(parents=True, exist_ok=True)
    place, links, files = _Place(target), list[tarfile.TarInfo](), 0
    with tarfile.open(fileobj=cast("BinaryIO", _Whole(source)), mode="r|", errorlevel=2) as archive:
        for member in archive:
            if member.isreg():
                content = archive.extractfile(member)
                assert content is not None, "a regular member has content"
                place.write(member, content)
                files += 1
            elif member.isdir():
                place.directory(_inside(member.name))
            elif member.issym():
                links.append(member)
            elif member.islnk():
                raise UnsafeArchive(f"{member.name!r} is a hard link")
    for member in links:
        place.link(member)
    return files


def _inside(name: str) -> PurePosixPath:
    """The member's path below the target. Raises UnsafeArchive if it leaves it."""
    path = PurePosixPath(name)
    # A backslash or a drive is a way out on Windows, and only an odd name elsewhere.
    foreign = os.name == "nt" and any(sign in name for sign in "\\:")
    if path.is_absolute() or ".." in path.parts or foreign or "\0" in name:
        raise UnsafeArchive(f"{name!r} leaves the target")
    return path


class _Place:
    """A directory to unpack into; remembers which parents it has found to be no links."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sound: set[PurePosixPath] = {PurePosixPath()}

    def directory(self, path: PurePosixPath) -> None:
        """Make a directory and its parents, none of them a link."""
        if path in self._sound:
            return
        self.directory(path.parent)
        here = self._root / path
        if here.is_symlink() or not here.is_dir():
            here.unlink(missing_ok=True)
            here.mkdir()
        self._sound.add(path)

    def write(self, member: tarfile.TarInfo, content: Readable) -> None:
        """Write a file anew: what was there, a link perhaps, is replaced and not followed."""
        here = self._free(member.name)
        with here.open("xb") as file:
            while piece := content.read(_PIECE_BYTES):
                file.write(piece)
        here.chmod((member.mode & _MODE_BITS) | stat.S_IRUSR | stat.S_IWUSR)
        os.utime(here, (member.mtime, member.mtime))

    def link(self, member: tarfile.TarInfo) -> None:
        """Make a link that stays inside. Raises UnsafeArchive for one that does not."""
        path, steps = _inside(member.name), PurePosixPath(member.linkname)
        up = next((i for i, part in enumerate(steps.parts) if part != ".."), len(steps.parts))
        # Parents are no links here, so leading steps up are exact; later ones might pass a link.
        leaves = steps.is_absolute() or up > len(path.parts) - 1 or ".." in steps.parts[up:]
        if leaves or (os.name == "nt" and ":" in member.linkname):
            raise UnsafeArchive(f"{member.name!r} links to {member.linkname!r}, outside the target")
        self._free(member.name).symlink_to(member.linkname)

    def _free(self, name: str) -> Path:
        path = _inside(name)
        if not path.parts:
            raise UnsafeArchive("a member has no name")
        self.directory(path.parent)
        here = self._root / path
        if here.is_symlink() or here.exists():
            here.unlink()  # a directory here is an IsADirectoryError, rightly
        return here


class _Whole:
    """Reads exactly as many bytes as asked for, as tarfile expects of a file, until the end."""

    def __init__(self, source: Readable) -> None:
        self._source = source

    def read(self, size: int) -> bytes:
        pieces: list[bytes] = []
        while size > 0 and (piece := self._source.read(size)):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


class ChunkReader:
    """Makes a `read(size)` of a function that gives the next chunk, empty at the end."""

    def __init__(self, next_chunk: Callable[[], bytes]) -> None:
        self._next_chunk = next_chunk
        self._held = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; empty at the end."""
        if not self._held:
            self._held = memoryview(self._next_chunk())
        piece, self._held = self._held[:size], self._held[size:]
        return bytes(piece)
