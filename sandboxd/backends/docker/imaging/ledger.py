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
    """An image, by its id. names: by which it was asked for. pulled: to this engine, by us.

    asked_at: when it was last asked for, in Unix seconds; used_at: for a box.
    """

    image_id: str
    names: list[str]
    pulled: bool
    asked_at: float
    used_at: float | None = None


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
        """All of them, those first that nobody asked for the longest."""
        return sorted(self._entries.values(), key=lambda entry: entry.asked_at)

    def get(self, image_id: str) -> Entry | None:
        """One of them."""
        return self._entries.get(image_id)

    def note(self, image_id: str, name: str, *, at: float, pulled: bool = False) -> None:
        """An image is asked for under a name, or was pulled."""
        entry = self._entries.setdefault(image_id, Entry(image_id, [], pulled, at))
        entry.pulled = entry.pulled or pulled
        entry.asked_at = max(entry.asked_at, at)
        self._changed = True
        if name in entry.names:
            return
        for other in self._entries.values():  # a name stands for one image
            if name in other.names:
                other.names.remove(name)
        entry.names.append(name)
        self._forget_oldest()

    def used(self, image_id: str, *, at: float) -> None:
        """A box is made of an image."""
        if entry := self._entries.get(image_id):
            entry.used_at = at
            self._changed = True

    def forget(self, image_id: str) -> None:
        """An image is gone."""
        self._changed = self._entries.pop(image_id, None) is not None or self._changed

    def _forget_oldest(self) -> None:
        if len(self._entries) > _MAX_ENTRIES:
            self.forget(min(self._entries.values(), key=lambda entry: entry.asked_at).image_id)


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
        asked_at=float(item["asked_at"]),
        used_at=None if item["used_at"] is None else float(item["used_at"]),
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
