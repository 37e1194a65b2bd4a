"""Where the writes of a box lie on the engine's machine, as far as that is in sight from here.

The engine's own figure is the sum of lengths: it takes holes for data and a million empty files for
nothing, and it leaves volumes out. Blocking; call from a worker thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandboxd.linux.open_files import unlinked_bytes
from sandboxd.linux.trees import disk_usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """layer: what a box wrote over its image; None: only the engine can say.

    beside: the volumes of its image, and what it shares with us.
    """

    layer: Path | None = None
    beside: tuple[Path, ...] = ()

    def measure(self, pids: list[int], *, enough_bytes: int) -> int:
        """Bytes on disk in all that is in sight; stops counting once past `enough_bytes`.

        pids: the box's processes, for what they hold without a name.
        """
        trees = [self.layer, *self.beside] if self.layer else list(self.beside)
        total = 0
        for tree in trees:
            if total <= enough_bytes:
                total += disk_usage(tree, enough_bytes=enough_bytes - total)
        if total <= enough_bytes:
            devices = {*_devices(trees), *_devices(Path(f"/proc/{pid}/root/") for pid in pids[:1])}
            total += unlinked_bytes(pids, devices=devices, enough_bytes=enough_bytes - total)
        return total


def written_by(facts: Mapping[str, Any], pid: int, *, shared: Path) -> Written:
    """Where a container writes. facts: the engine's on it. pid: its first process's.

    Others than root cannot look into what belongs to a box's own users.
    """
    if os.geteuid() != 0:
        return Written(beside=(shared,))
    root = Path(f"/proc/{_parent_of(pid)}/root")
    driver = facts.get("GraphDriver") or {}
    upper = str((driver.get("Data") or {}).get("UpperDir") or "")
    volumes = [
        str(mount.get("Source") or "")
        for mount in facts.get("Mounts") or ()
        if mount.get("Type") == "volume"
    ]
    seen = [place for place in (_below(root, path) for path in volumes) if place is not None]
    return Written(layer=_below(root, upper), beside=(shared, *seen))


def _below(root: Path, path: str) -> Path | None:
    """A place of the engine's machine, seen from here; None if it is not."""
    place = root / path.lstrip("/")
    try:
        return place if path and place.is_dir() else None
    except OSError:
        return None


def _parent_of(pid: int) -> int:
    """Whoever the engine left to watch over the container: it sees what the engine sees."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return 1


def _devices(places: Iterator[Path] | list[Path]) -> Iterator[int]:
    for place in places:
        with suppress(OSError):
            yield place.stat().st_dev
