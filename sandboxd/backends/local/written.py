"""What a box wrote to this machine's disk: in its directories, and in files without a name.

Blocking; call from a worker thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from sandboxd.linux.open_files import unlinked_bytes
from sandboxd.linux.trees import disk_usage


def written_bytes(home: Path, *, first: int, pids: Sequence[int], enough_bytes: int) -> int:
    """Bytes on disk; stops counting once past `enough_bytes`.

    home: where its directories lie. first: its first process. pids: all of them.
    """
    total = disk_usage(home, enough_bytes=enough_bytes)
    if total <= enough_bytes:
        devices = {*_overlays_of(first), *_device_of(home)}
        total += unlinked_bytes(pids, devices=devices, enough_bytes=enough_bytes - total)
    return total


def _overlays_of(pid: int) -> Iterator[int]:
    """The devices under which its files lie, which are not the disk's own."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/mountinfo").read_text(errors="replace").splitlines():
            left, _, right = line.partition(" - ")
            if right.startswith("overlay "):
                major, _, minor = left.split()[2].partition(":")
                yield os.makedev(int(major), int(minor))


def _device_of(place: Path) -> Iterator[int]:
    with suppress(OSError):
        yield place.stat().st_dev
