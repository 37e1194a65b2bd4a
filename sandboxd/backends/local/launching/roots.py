"""What a box sees at `/`: the machine's own programs by an allow-list, or an unpacked image.

Runs in the launching thread, which alone sees the stage. Knows paths and owners, no boxes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sandboxd.backends.local.boxes import BoxPlaces
from sandboxd.backends.local.launching.argv import Overlay
from sandboxd.backends.local.launching.hiding import Files, hidden_below, lay_over
from sandboxd.backends.local.launching.launcher import Launcher
from sandboxd.backends.local.launching.skeletons import Skeleton, lay_out
from sandboxd.backends.local.launching.stage import Stage
from sandboxd.errors import SandboxdError
from sandboxd.guest.inside import GUEST_INSIDE, SHARED_INSIDE
from sandboxd.linux.trees import make_directory
from sandboxd.wire.codes import ErrorCode

HOST_IMAGE = "host"
_SHARED_WITH_HOST = ("usr", "etc", "opt")
SHOWN_TOPS = tuple(Path("/") / name for name in _SHARED_WITH_HOST)
_TOP_NAMES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

# Password hashes have no business inside, whoever may read them outside.
_MASKED = ("shadow", "shadow-", "gshadow", "gshadow-")
_KERNELSPEC = "/local/share/jupyter/kernels/python3/kernel.json"
_KERNEL_WORDS = ("-m", "ipykernel_launcher", "-f", "{connection_file}")
_SEEDS = {
    "hostname": b"sandbox\n",
    "hosts": b"127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost\n",
}


@dataclass(frozen=True, slots=True)
class Layer:
    """A directory that a box may write to: what lies under its writing, the lowest first.

    sources: paths that the box's ids can reach, and skeletons.
    """

    sources: tuple[str | Skeleton, ...]
    inside: str

    @property
    def name(self) -> str:
        """Its name among the box's own directories."""
        return self.inside.strip("/") or "top"


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """The parts of a box's root.

    own_top: what is built anew for each box at `/`, where no overlay can be; else None.
    overlays: writable in effect, what is written goes to the box's own disk.
    read_only: (source, inside), shown as they are.
    """

    own_top: Skeleton | None = None
    overlays: tuple[Layer, ...] = ()
    read_only: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def skeletons(self) -> list[Skeleton]:
        """Those that must be ready before a box is started on this root."""
        sources = [source for layer in self.overlays for source in layer.sources]
        return [source for source in sources if isinstance(source, Skeleton)]


class Roots:
    """Finds the root for an image."""

    def __init__(
        self, launcher: Launcher, host: Root, *, can_overlay: bool, groups: Sequence[str]
    ) -> None:
        """groups: where a box sees its control groups."""
        self._launcher = launcher
        self._host = host
        self._can_overlay = can_overlay
        self._groups = groups

    async def find(self, image: str) -> Root:
        """The root of `image`. Raises `image_unavailable`, with the mend."""
        if image == HOST_IMAGE:
            return self._host
        stage = self._launcher.stage
        return await self._launcher.call(
            lambda: image_root(stage, image, can_overlay=self._can_overlay, groups=self._groups)
        )


def host_root(
    stage: Stage,
    *,
    can_overlay: bool,
    groups: Sequence[str] = (),
    hidden: Sequence[Path] = (),
) -> Root:
    """The root of `image = "host"`: nothing of the host but its programs and their settings.

    groups: where a box sees its control groups. hidden: what it may not see of all this.
    """
    python = _python_prefixes(stage, hidden)
    laid = {"/etc": _settings(stage), "/usr": _kernelspec(python)}
    overlays, read_only, symlinks, notes = [], [], {}, []
    tops = [Path("/") / name for name in (*_SHARED_WITH_HOST, *_TOP_NAMES)]
    mounts = _mount_points()
    for top in tops:
        if top.is_symlink():
            symlinks[str(top)] = str(top.readlink())
        elif top.is_dir():
            source = stage.show(top, owned=False)
            # The stage shows a directory without what is mounted below it; without a stage such
            # a directory cannot be the lower one of an overlay.
            if can_overlay and (stage.first_id is not None or not _has_mount_below(mounts, top)):
                over = lay_over(top, hidden, laid.get(str(top), {}))
                overlays.append(Layer((source,) if over is None else (source, over), str(top)))
            else:
                read_only.append((source, str(top)))
                notes.append(f"{top} is read-only inside: it cannot be the base of an overlay")
                notes += [f"{place} can be read inside" for place in hidden_below(top, hidden)]
    read_only += python
    shown = [layer.inside for layer in overlays] + [inside for _, inside in read_only]
    top_layout = _mount_points_inside([*shown, *groups], symlinks)
    return Root(
        own_top=None if can_overlay else top_layout,
        overlays=(Layer((top_layout,), "/"), *overlays) if can_overlay else (),
        read_only=tuple(read_only),
        notes=(*notes, python_note(inside for _, inside in python)),
    )


def _mount_points_inside(
    directories: Iterable[str], symlinks: Mapping[str, str] | None = None
) -> Skeleton:
    return lay_out(
        directories=["/proc", "/dev", SHARED_INSIDE, *directories],
        files=[GUEST_INSIDE],
        symlinks=symlinks,
    )


def image_root(stage: Stage, image: str, *, can_overlay: bool, groups: Sequence[str] = ()) -> Root:
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
    # The image lies over the skeleton: what it has itself is as it has it.
    return Root(overlays=(Layer((_mount_points_inside(groups), shown), "/"),))


def build_directories(places: BoxPlaces, root: Root, *, owner: int | None) -> None:
    """Make the directories a box writes to, owned by its root. Blocking. Raises OSError."""
    if root.own_top is not None:
        root.own_top.build(places.root, owner=owner)
    own = [places.run]
    for layer in root.overlays:
        for path in (places.upper(layer.name), places.work(layer.name)):
            make_directory(path, mode=0o755)
            own.append(path)
    if owner is not None:
        for path in own:
            os.chown(path, owner, owner)


def overlays_for(
    root: Root, places: BoxPlaces, *, skeleton_path: Callable[[Skeleton], str]
) -> list[Overlay]:
    """A root's overlays, all by the paths that the box's ids reach."""
    return [
        Overlay(
            sources=[
                skeleton_path(source) if isinstance(source, Skeleton) else source
                for source in layer.sources
            ],
            upper=str(places.upper(layer.name)),
            work=str(places.work(layer.name)),
            inside=layer.inside,
        )
        for layer in root.overlays
    ]


def python_note(places: Iterable[str]) -> str:
    """Which Python is `python3` inside, in words for `doctor`."""
    if shown := ", ".join(places):
        return f"python: the daemon's own is shown inside at {shown}"
    if _is_system(sys.prefix):
        return f"python: the daemon's own, {sys.executable}, is the system's"
    return "python: the daemon's own cannot be shown inside; /usr/bin/python3 serves"


def _python_prefixes(stage: Stage, hidden: Sequence[Path]) -> list[tuple[str, str]]:
    """The daemon's environment and the Python it is made from, at their own paths."""
    shown = []
    for prefix in {str(Path(prefix)): None for prefix in (sys.base_prefix, sys.prefix)}:
        if _is_system(prefix) or len(PurePosixPath(prefix).parts) < 3:
            continue
        if hidden_below(Path(prefix), hidden):
            return []
        source = _show_python(stage, Path(prefix))
        if source is None:
            return []
        shown.append((source, prefix))
    return shown


def _kernelspec(python: Sequence[tuple[str, str]]) -> Files:
    """For what lies over the host's `/usr`: the daemon's Python, where it is shown inside, is the
    Jupyter kernel `python3`.
    """
    if sys.prefix not in {inside for _, inside in python}:
        return {}
    spec = {
        "argv": [f"{sys.prefix}/bin/python3", *_KERNEL_WORDS],
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
    }
    return {_KERNELSPEC: (json.dumps(spec, indent=1).encode(), 0o644)}


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


def _settings(stage: Stage) -> Files:
    """What lies over the host's `/etc`: the sandbox's own name, and blanks for secrets."""
    own = {f"/{name}": (data, 0o644) for name, data in _SEEDS.items()}
    masked = {f"/{name}": (b"", 0o600) for name in _MASKED if _opens(Path("/etc") / name, stage)}
    return own | masked


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
