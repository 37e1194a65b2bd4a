"""Files that are held after their last name has gone: they take disk space, and no tree has them.

What is on its way between two processes by a socket is not seen. Blocking; call from a worker
thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from random import sample

_DELETED = " (deleted)"
_BLOCK_BYTES = 512
_MAX_LOOKED_AT = 50_000  # descriptors and mappings together


def unlinked_bytes(pids: Sequence[int], *, devices: Collection[int], enough_bytes: int) -> int:
    """Bytes on disk that these processes hold without a name; stops once past `enough_bytes`.

    devices: of the file systems that count. What may not be looked into counts as nothing.
    """
    total = 0
    seen = set()
    # In no order, so that whoever opens very many cannot choose which are looked at.
    for place in islice(_held(sample(pids, len(pids))), _MAX_LOOKED_AT):
        with suppress(OSError):
            if not place:
                continue
            facts = os.stat(place)  # noqa: PTH116 - a magic link of /proc, no path to keep
            itself = (facts.st_dev, facts.st_ino)
            if facts.st_nlink or facts.st_dev not in devices or itself in seen:
                continue
            if stat.S_ISREG(facts.st_mode):
                seen.add(itself)
                total += facts.st_blocks * _BLOCK_BYTES
        if total > enough_bytes:
            break
    return total


def _held(pids: Sequence[int]) -> Iterator[str]:
    """A way to each file whose name may be gone; empty for each that was passed over.

    Names are read first: to read one asks no file system, and so cannot hang on a broken one.
    """
    for pid in pids:
        yield from _open_in(pid)
        yield from _mapped_in(pid)


def _open_in(pid: int) -> Iterator[str]:
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            yield entry.path if _link(entry.path).endswith(_DELETED) else ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - the text, which is no path
    except OSError:
        return ""


def _mapped_in(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            if line.endswith(_DELETED):
                begin, _, end = line.partition(" ")[0].partition("-")
                yield f"/proc/{pid}/map_files/{int(begin, 16):x}-{int(end, 16):x}"
            else:
                yield ""
