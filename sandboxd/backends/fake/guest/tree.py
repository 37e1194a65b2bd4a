"""A file tree in memory, with the errors of a real one. Everybody is root in it. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sandboxd.backends.fake.guest.refusals import Refusal

_MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 4096
_MAX_LINKS = 40


@dataclass(slots=True)
class File:
    """A regular file."""

    data: bytes = b""
    mode: int = 0o644
    modified_at: float = 0.0


@dataclass(slots=True)
class Directory:
    """Names and what they stand for."""

    entries: dict[bytes, Node] = field(default_factory=dict)
    mode: int = 0o755
    modified_at: float = 0.0


@dataclass(slots=True)
class Link:
    """A symbolic link."""

    target: bytes
    mode: int = 0o777
    modified_at: float = 0.0


Node = File | Directory | Link


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path leads: a name in a directory, and what stands there now, if anything does."""

    directory: Directory
    name: bytes
    path: bytes
    node: Node | None


class FileTree:
    """Paths are bytes; relative ones start at `workdir`. Raises Refusal with the file codes."""

    def __init__(self, *, now: Callable[[], float], disk_bytes: int) -> None:
        self._now = now
        self._disk_bytes = disk_bytes
        self.root = Directory(modified_at=now())
        self.workdir = b"/"
        self.used_bytes = 0

    @property
    def free_bytes(self) -> int:
        """What may still be written."""
        return self._disk_bytes - self.used_bytes

    def find(self, path: bytes, *, cwd: bytes = b"", follow: bool = True) -> Place:
        """Walk a path. The last name may be missing; all before it must be directories."""
        if b"\0" in path or not path:
            raise Refusal("bad_request", "a path is empty or holds a NUL")
        return self._walk(absolute(path, cwd or self.workdir), follow=follow, links=0)

    def node(self, path: bytes, *, cwd: bytes = b"", follow: bool = True) -> Node:
        """What stands at a path."""
        place = self.find(path, cwd=cwd, follow=follow)
        if place.node is None:
            raise Refusal("file_not_found", f"there is no {_shown(path)}")
        return place.node

    def file(self, path: bytes, *, cwd: bytes = b"") -> File:
        """The regular file at a path."""
        node = self.node(path, cwd=cwd)
        if not isinstance(node, File):
            raise Refusal("file_is_directory", f"{_shown(path)} is a directory")
        return node

    def directory(self, path: bytes, *, cwd: bytes = b"") -> Directory:
        """The directory at a path."""
        node = self.node(path, cwd=cwd)
        if not isinstance(node, Directory):
            raise Refusal("file_not_directory", f"{_shown(path)} is no directory")
        return node

    def write(
        self, path: bytes, data: bytes, *, mode: int | None = None, cwd: bytes = b""
    ) -> tuple[Place, bool]:
        """Put a whole file; says also whether it is new. Its directory must be there."""
        place = self.find(path, cwd=cwd)
        old = place.node
        if isinstance(old, Directory):
            raise Refusal("file_is_directory", f"{_shown(path)} is a directory")
        kept = old.mode if old is not None else 0o644
        self._take(len(data) - (len(old.data) if isinstance(old, File) else 0))
        new = File(data, kept if mode is None else mode, self._now())
        place.directory.entries[place.name] = new
        return Place(place.directory, place.name, place.path, new), old is None

    def make_directory(
        self, path: bytes, *, mode: int = 0o755, parents: bool = False, cwd: bytes = b""
    ) -> Place:
        """Make a directory; one that is there already is fine if `parents`."""
        full = absolute(path, cwd or self.workdir)
        if parents:
            parent = full.rpartition(b"/")[0]
            if parent:
                self.make_directory(parent, parents=True)
        place = self.find(full)
        if place.node is not None:
            if parents and isinstance(place.node, Directory):
                return place
            code = "file_exists" if isinstance(place.node, Directory) else "file_not_directory"
            raise Refusal(code if parents else "file_exists", f"{_shown(path)} is there already")
        new = Directory(mode=mode, modified_at=self._now())
        place.directory.entries[place.name] = new
        return Place(place.directory, place.name, place.path, new)

    def link(self, path: bytes, target: bytes, *, cwd: bytes = b"") -> None:
        """Make a symbolic link."""
        place = self.find(path, cwd=cwd, follow=False)
        if place.node is not None:
            raise Refusal("file_exists", f"{_shown(path)} is there already")
        place.directory.entries[place.name] = Link(target, modified_at=self._now())

    def remove(self, path: bytes, *, recursive: bool = False, cwd: bytes = b"") -> None:
        """Remove a name; a directory with something in it only if `recursive`."""
        place = self.find(path, cwd=cwd, follow=False)
        if place.node is None:
            raise Refusal("file_not_found", f"there is no {_shown(path)}")
        if not place.name:
            raise Refusal("file_forbidden", "the root stays")
        if isinstance(place.node, Directory) and place.node.entries and not recursive:
            raise Refusal("file_is_directory", f"{_shown(path)} is a directory that is not empty")
        del place.directory.entries[place.name]
        self.used_bytes -= _size(place.node)

    def move(self, source: bytes, target: bytes, *, overwrite: bool) -> Place:
        """Give a node another name."""
        old = self.find(source, follow=False)
        if old.node is None:
            raise Refusal("file_not_found", f"there is no {_shown(source)}")
        new = self.find(target, follow=False)
        if (new.path + b"/").startswith(old.path + b"/") and new.path != old.path:
            raise Refusal("bad_request", "a directory cannot be moved into itself")
        self._check_target(old.node, new, overwrite=overwrite)
        if new.node is not None and new.node is not old.node:
            self.used_bytes -= _size(new.node)
        del old.directory.entries[old.name]
        new.directory.entries[new.name] = old.node
        return Place(new.directory, new.name, new.path, old.node)

    def entries(self, path: bytes, *, recursive: bool) -> Iterator[Place]:
        """What is in a directory, each directory before what is in it."""
        place = self.find(path)
        yield from self._below(self.directory(path), place.path, recursive=recursive)

    def _below(self, directory: Directory, path: bytes, *, recursive: bool) -> Iterator[Place]:
        for name, node in sorted(directory.entries.items()):
            place = Place(directory, name, path.rstrip(b"/") + b"/" + name, node)
            yield place
            if recursive and isinstance(node, Directory):
                yield from self._below(node, place.path, recursive=True)

    def _check_target(self, node: Node, new: Place, *, overwrite: bool) -> None:
        if new.node is None or new.node is node:
            return
        if not overwrite:
            raise Refusal("file_exists", f"{_shown(new.path)} is there already")
        if isinstance(new.node, Directory) and (
            not isinstance(node, Directory) or new.node.entries
        ):
            raise Refusal("file_is_directory", f"{_shown(new.path)} is a directory")
        if isinstance(node, Directory) and not isinstance(new.node, Directory):
            raise Refusal("file_not_directory", f"{_shown(new.path)} is no directory")

    def _walk(self, path: bytes, *, follow: bool, links: int) -> Place:
        if links > _MAX_LINKS:
            raise Refusal("file_not_found", "too many symbolic links")
        if len(path) >= _MAX_PATH_BYTES:
            raise Refusal("name_too_long", "the path is too long")
        place = Place(self.root, b"", b"/", self.root)
        names = [name for name in path.split(b"/") if name]
        for position, name in enumerate(names):
            last = position == len(names) - 1
            directory = self._inside(place, path)
            node, here = directory.entries.get(name), place.path.rstrip(b"/")
            if len(name) > _MAX_NAME_BYTES:
                raise Refusal("name_too_long", "a name is too long")
            if isinstance(node, Link) and (follow or not last):
                onward = b"/".join([absolute(node.target, here or b"/"), *names[position + 1 :]])
                return self._walk(absolute(onward, b"/"), follow=follow, links=links + 1)
            place = Place(directory, name, here + b"/" + name, node)
        return place

    def _inside(self, place: Place, path: bytes) -> Directory:
        if place.node is None:
            raise Refusal("file_not_found", f"there is no {_shown(place.path)}")
        if not isinstance(place.node, Directory):
            raise Refusal("file_not_directory", f"{_shown(place.path)} is no directory")
        return place.node

    def _take(self, more: int) -> None:
        if self.used_bytes + more > self._disk_bytes:
            raise Refusal("disk_full", f"the disk of {self._disk_bytes} bytes is full")
        self.used_bytes += more


def absolute(path: bytes, cwd: bytes) -> bytes:
    """A path from the root without `.` and `..`, which here, unlike on disk, ignore links."""
    kept: list[bytes] = []
    for name in (path if path.startswith(b"/") else cwd + b"/" + path).split(b"/"):
        if name == b"..":
            del kept[-1:]
        elif name not in {b"", b"."}:
            kept.append(name)
    return b"/" + b"/".join(kept)


def _size(node: Node) -> int:
    if isinstance(node, File):
        return len(node.data)
    if isinstance(node, Directory):
        return sum(_size(inner) for inner in node.entries.values())
    return 0


def _shown(path: bytes) -> str:
    return path.decode(errors="replace")
