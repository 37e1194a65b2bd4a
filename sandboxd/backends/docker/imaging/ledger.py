"""What we pulled and when it was last used, over restarts. Engines keep neither.

A small file, written whole; one that is lost or broken means that we pulled nothing we know of,
so that nothing is dropped that might be somebody else's.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio
import structlog
from anyio import to_thread

log = structlog.get_logger(__name__)

_MAX_ENTRIES = 10_000
_VERSION = 1


@dataclass(slots=True)
class Entry:
    """An image, by its id. names: by which our boxes asked for it. used_at: in Unix seconds.

    pulled: whether it came to this engine by a pull of ours.
    """

    image_id: str
    names: list[str]
    pulled: bool
    used_at: float


class Ledger:
    """The entries, in memory and in the file. Synchronous but for `save`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, Entry] = {}
        self._changed = False
        self._lock = anyio.Lock()  # one writer of the file at a time

    async def load(self) -> None:
        """Read the file, if there is one that can be read."""
        self._entries = await to_thread.run_sync(_read, self._path)

    async def save(self) -> None:
        """Write the file, if anything changed. What cannot be written is logged and lost."""
        async with self._lock:
            if not self._changed:
                return
            self._changed = False
            body = {"version": _VERSION, "images": [asdict(e) for e in self._entries.values()]}
            try:
                await to_thread.run_sync(_write, self._path, json.dumps(body))
            except OSError as error:
                self._changed = True
                log.warning("image.ledger_not_written", path=str(self._path), error=str(error))

    def entries(self) -> list[Entry]:
        """All of them, the longest unused first."""
        return sorted(self._entries.values(), key=lambda entry: entry.used_at)

    def get(self, image_id: str) -> Entry | None:
        """One of them."""
        return self._entries.get(image_id)

    def note(self, image_id: str, name: str, *, at: float, pulled: bool = False) -> None:
        """An image is used under a name, or was pulled."""
        entry = self._entries.setdefault(image_id, Entry(image_id, [], pulled, at))
        entry.pulled = entry.pulled or pulled
        entry.used_at = max(entry.used_at, at)
        if name not in entry.names:
            entry.names.append(name)
        for other in self._entries.values():  # a name stands for one image
            if other is not entry and name in other.names:
                other.names.remove(name)
        self._changed = True
        self._forget_oldest()

    def forget(self, image_id: str) -> None:
        """An image is gone."""
        self._changed = self._entries.pop(image_id, None) is not None or self._changed

    def _forget_oldest(self) -> None:
        if len(self._entries) > _MAX_ENTRIES:
            self.forget(min(self._entries.values(), key=lambda entry: entry.used_at).image_id)


def _read(path: Path) -> dict[str, Entry]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        found = [_entry(item) for item in body["images"]] if body["version"] == _VERSION else []
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("image.ledger_lost", path=str(path), error=str(error))
        return {}
    return {entry.image_id: entry for entry in found}


def _entry(item: dict[str, Any]) -> Entry:
    return Entry(
        image_id=str(item["image_id"]),
        names=[str(name) for name in item["names"]],
        pulled=item["pulled"] is True,
        used_at=float(item["used_at"]),
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
