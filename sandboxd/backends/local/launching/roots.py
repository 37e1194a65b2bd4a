"""What a box sees at `/`: the machine's own programs by an allow-list, or an unpacked image.

Runs in the launching thread, which alone sees the stage. Knows paths and owners, no boxes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from sandboxd.backends.local.boxes import BoxPlaces
from sandboxd.backends.local.kernel.trees import make_directory
from sandboxd.backends.local.launching.argv import Overlay
from sandboxd.backends.local.launching.launcher import Launcher
from sandboxd.backends.local.launching.stage import Stage
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

HOST_IMAGE = "host"
_SHARED_WITH_HOST = ("usr", "etc", "opt")
_TOP_NAMES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

# Password hashes have no business inside, whoever may read them outside.
_MASKED = ("shadow", "shadow-", "gshadow", "gshadow-")
_SEEDS = {
    "hostname": b"sandbox\n",
    "hosts": b"127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost\n",
}


@dataclass(frozen=True, slots=True)
class Layer:
    """One directory of a root, by the path that the box's ids can reach."""

    source: str
    inside: str

    @property
    def name(self) -> str:
        """Its name among the box's own directories."""
        return self.inside.strip("/") or "image"


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """The parts of a box's root.

    overlays: writable in effect, what is written goes to the box's own disk. read_only: shown as
    they are. seeds: files under `/etc` that differ from the image's: name to bytes and mode.
    """

    has_own_top: bool
    overlays: tuple[Layer, ...]
    read_only: tuple[Layer, ...] = ()
    symlinks: tuple[tuple[str, str], ...] = ()
    seeds: Mapping[str, tuple[bytes, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Roots:
    """Finds the root for an image."""

    def __init__(self, launcher: Launcher, host: Root, *, can_overlay: bool) -> None:
        self._launcher = launcher
        self._host = host
        self._can_overlay = can_overlay

    async def find(self, image: str) -> Root:
        """The root of `image`. Raises `image_unavailable`, with the mend."""
        if image == HOST_IMAGE:
            return self._host
        stage = self._launcher.stage
        return await self._launcher.call(
            lambda: image_root(stage, image, can_overlay=self._can_overlay)
        )


def host_root(stage: Stage, *, can_overlay: bool) -> Root:
    """The root of `image = "host"`: nothing of the host but its programs and their settings."""
    overlays, read_only, symlinks, notes = [], [], [], []
    tops = [Path("/") / name for name in (*_SHARED_WITH_HOST, *_TOP_NAMES)]
    mounts = _mount_points()
    for top in tops:
        if top.is_symlink():
            symlinks.append((str(top.readlink()), str(top)))
        elif top.is_dir():
            layer = Layer(stage.show(top, owned=False), str(top))
            # The stage shows a directory without what is mounted below it; without a stage such
            # a directory cannot be the lower one of an overlay.
            if can_overlay and (stage.first_id is not None or not _has_mount_below(mounts, top)):
                overlays.append(layer)
            else:
                read_only.append(layer)
                notes.append(f"{top} is read-only inside: it cannot be the base of an overlay")
    python = _python_layers(stage)
    return Root(
        has_own_top=True,
        overlays=tuple(overlays),
        read_only=(*read_only, *python),
        symlinks=tuple(symlinks),
        seeds=_host_seeds(stage) if any(layer.inside == "/etc" for layer in overlays) else {},
        notes=(*notes, python_note(python)),
    )


def image_root(stage: Stage, image: str, *, can_overlay: bool) -> Root:
    """The root of an unpacked image. Raises `image_unavailable`, with the mend."""
    path = Path(image)
    if not path.is_absolute():
        raise _unavailable(image, 'the local backend takes "host" or the path of an unpacked root')
    try:
        owner = path.stat().st_uid
        is_root = any((path / name).is_dir() for name in ("bin", "usr/bin", "sbin"))
    except OSError as error:
        raise _unavailable(image, f"it cannot be read: {error.strerror}") from error
    if path.resolve() == Path("/") or not is_root:
        raise _unavailable(image, "it is no unpacked root: there is no bin or usr/bin in it")
    if stage.first_id is None and owner != os.geteuid():
        raise _unavailable(image, f"it belongs to user {owner}: without root it must be your own")
    if not can_overlay:
        raise _unavailable(image, "this kernel has no overlay for ordinary users (Linux 5.11)")
    try:
        shown = stage.show(path, owned=owner != stage.first_id, keep=False)
    except OSError as error:
        raise _unavailable(
            image,
            f"its file system cannot map owners ({error.strerror}): "
            f"`chown -R` a copy so that its root is user {stage.first_id}",
        ) from error
    return Root(has_own_top=False, overlays=(Layer(shown, "/"),))


def build_directories(places: BoxPlaces, root: Root, *, owner: int | None) -> None:
    """Make the directories a box writes to, owned by its root. Blocking. Raises OSError."""
    own = [places.run]
    if root.has_own_top:
        make_directory(places.root, mode=0o755)
        own.append(places.root)
    for directory in (places.upper(""), places.work("")):
        make_directory(directory, mode=0o755)
    for layer in root.overlays:
        for path in (places.upper(layer.name), places.work(layer.name)):
            make_directory(path, mode=0o755)
            own.append(path)
    for name, (data, mode) in root.seeds.items():
        path = places.upper("etc") / name
        path.write_bytes(data)
        path.chmod(mode)
        own.append(path)
    if owner is not None:
        for path in own:
            os.chown(path, owner, owner)


def overlays_for(root: Root, home: str) -> list[Overlay]:
    """A root's overlays for the box at `home`, as its ids reach it."""
    return [
        Overlay(
            source=layer.source,
            upper=f"{home}/upper/{layer.name}",
            work=f"{home}/work/{layer.name}",
            inside=layer.inside,
        )
        for layer in root.overlays
    ]


def python_note(python: Iterable[Layer]) -> str:
    """Which Python is `python3` inside, in words for `doctor`."""
    places = [layer.inside for layer in python]
    if places:
        return f"python: the daemon's own is shown inside at {', '.join(places)}"
    if _is_system(sys.prefix):
        return f"python: the daemon's own, {sys.executable}, is the system's"
    return "python: the daemon's own cannot be shown inside; /usr/bin/python3 serves"


def _python_layers(stage: Stage) -> list[Layer]:
    """The daemon's environment and the Python it is made from, at their own paths."""
    layers = []
    prefixes = {str(Path(prefix)): None for prefix in (sys.base_prefix, sys.prefix)}
    for prefix in prefixes:
        if _is_system(prefix) or len(PurePosixPath(prefix).parts) < 3:
            continue
        shown = _show_python(stage, Path(prefix))
        if shown is None:
            return []
        layers.append(Layer(shown, prefix))
    return layers


def _show_python(stage: Stage, prefix: Path) -> str | None:
    try:
        return stage.show(prefix, owned=stage.first_id is not None)
    except OSError:
        pass
    try:
        # Without mapped owners, the box's ids are strangers to the files.
        readable = all(p.stat().st_mode & 0o005 == 0o005 for p in (prefix, prefix / "bin/python3"))
        return stage.show(prefix, owned=False) if readable else None
    except OSError:
        return None


def _is_system(prefix: str) -> bool:
    return PurePosixPath(prefix).parts[1:2] in {(name,) for name in _SHARED_WITH_HOST}


def _host_seeds(stage: Stage) -> dict[str, tuple[bytes, int]]:
    seeds = {name: (data, 0o644) for name, data in _SEEDS.items()}
    masked = {name: (b"", 0o600) for name in _MASKED if _opens(Path("/etc") / name, stage)}
    return seeds | masked


def _opens(path: Path, stage: Stage) -> bool:
    """Whether a box could read a file of the host: its ids are strangers to it, or our own."""
    if stage.first_id is None:
        return os.access(path, os.R_OK)
    return path.exists() and bool(path.stat().st_mode & 0o004)


def _mount_points() -> list[PurePosixPath]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [PurePosixPath(line.split()[4]) for line in lines]


def _has_mount_below(mounts: Iterable[PurePosixPath], top: Path) -> bool:
    return any(PurePosixPath(top) in mount.parents for mount in mounts)


def _unavailable(image: str, why: str) -> SandboxdError:
    return SandboxdError(ErrorCode.IMAGE_UNAVAILABLE, f"image {image!r}: {why}")
