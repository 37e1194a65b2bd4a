"""Boxes on disk: where each thing of a box lies, and the record that says whose it is.

The record is written before anything else of a box exists, so that whatever crashes in between,
the box is found again by its label. Blocking file access; call from a worker thread.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sandboxd.backends.local.kernel.processes import ProcessMark, pids_naming
from sandboxd.backends.local.kernel.trees import remove_tree
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

_BOX_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")

# `sockaddr_un` holds 107 bytes; kernels add `-1` … `-5` to names beside the guest's socket.
MAX_SOCKET_PATH_BYTES = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRecord:
    """What is remembered of a box: its labels, its disk limit, and its first process once known."""

    box_id: str
    labels: Mapping[str, str]
    disk_limit_bytes: int
    memory_limit_bytes: int
    process: ProcessMark | None = None


@dataclass(frozen=True, slots=True)
class BoxPlaces:
    """Where the parts of one box lie on the host."""

    home: Path  # <state>/boxes/<box_id>
    link: Path  # <run>/<box_id>, a short way to `home/run`

    @property
    def record(self) -> Path:
        """The label of the box."""
        return self.home / "box.json"

    @property
    def root(self) -> Path:
        """The box's own directory at `/`, or all that it wrote over its image."""
        return self.home / "root"

    @property
    def run(self) -> Path:
        """The directory that host and box share; the guest's socket is in it."""
        return self.home / "run"

    @property
    def status(self) -> Path:
        """What bubblewrap says of the box: first its process, at last its exit code."""
        return self.home / "status"

    @property
    def complaints(self) -> Path:
        """What bubblewrap and the guest wrote to standard error."""
        return self.home / "stderr"

    @property
    def socket(self) -> Path:
        """The guest's socket by the short way."""
        return self.link / "s.sock"

    def upper(self, name: str) -> Path:
        """What the box writes over one layer."""
        return self.home / "upper" / name

    def work(self, name: str) -> Path:
        """The overlay's own scratch directory for that layer."""
        return self.home / "work" / name


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxStatus:
    """What bubblewrap reported so far."""

    pid: int | None = None
    pid_ns: int | None = None
    exit_code: int | None = None  # the first process's, 128 + signal if one ended it


class BoxShelf:
    """All boxes of one installation on disk."""

    def __init__(self, state_dir: Path, run_dir: Path, *, group: int | None = None) -> None:
        """group: the boxes' own, where that is not ours, so that it alone gets at them."""
        self.boxes_dir = state_dir / "boxes"
        self._run_dir = run_dir
        self._group = group

    def open(self) -> None:
        """Make the directory of all boxes. Raises OSError."""
        self.boxes_dir.mkdir(parents=True, exist_ok=True)
        self._close_to_others(self.boxes_dir)

    def _close_to_others(self, path: Path) -> None:
        """What a box's root leaves behind, set-user-id programs among it, is nobody else's."""
        if self._group is not None:
            os.chown(path, -1, self._group)
        path.chmod(0o700 if self._group is None else 0o710)

    def places(self, box_id: str) -> BoxPlaces:
        """Where a box lies, whether or not it exists. Raises `bad_request` for an unfit id."""
        if _BOX_ID.match(box_id) is None:
            raise SandboxdError(ErrorCode.BAD_REQUEST, f"{box_id!r} cannot name a box")
        return BoxPlaces(self.boxes_dir / box_id, self._run_dir / box_id)

    def pids_naming(self, box_id: str) -> list[int]:
        """The bubblewraps that were told to make this box: by the stage's paths or by ours."""
        last = f"/{box_id}/run\0"
        return [
            *pids_naming(f"\0{self._run_dir}/", last),
            *pids_naming(f"\0{self.boxes_dir}/", last),
        ]

    def create(self, record: BoxRecord) -> BoxPlaces:
        """Label a new box and open its directory. Raises `conflict` if there is one already."""
        places = self.places(record.box_id)
        try:
            places.home.mkdir(mode=0o700)
        except FileExistsError:
            raise SandboxdError(
                ErrorCode.CONFLICT, f"there is a box {record.box_id} already"
            ) from None
        self._close_to_others(places.home)
        self.write(record)
        places.run.mkdir(mode=0o700)
        with suppress(FileNotFoundError):
            places.link.unlink()
        places.link.symlink_to(places.run)
        return places

    def write(self, record: BoxRecord) -> None:
        """Replace the record in one step."""
        places = self.places(record.box_id)
        fresh = places.home / "box.json.new"
        fresh.write_text(json.dumps(asdict(record)))
        fresh.rename(places.record)

    def read(self, box_id: str) -> BoxRecord | None:
        """The record; None if there is no such box, or only what is left of one."""
        try:
            facts = json.loads(self.places(box_id).record.read_text())
            mark = facts.pop("process")
            return BoxRecord(**facts, process=mark and ProcessMark(**mark))
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None

    def status(self, box_id: str) -> BoxStatus:
        """What bubblewrap reported; all None where it reported nothing."""
        try:
            text = self.places(box_id).status.read_text()
        except OSError:
            return BoxStatus()
        return parse_status(text)

    def list_ids(self) -> list[str]:
        """Every directory here, finished or not."""
        try:
            return sorted(path.name for path in self.boxes_dir.iterdir() if _is_box(path))
        except FileNotFoundError:
            return []

    def remove(self, box_id: str) -> None:
        """Remove all of a box's files, its label last. Gone already is success."""
        places = self.places(box_id)
        with suppress(FileNotFoundError):
            places.link.unlink()
        for part in ("run", "root", "upper", "work"):
            remove_tree(places.home / part)
        remove_tree(places.home)


def _is_box(path: Path) -> bool:
    return _BOX_ID.match(path.name) is not None and path.is_dir() and not path.is_symlink()


def parse_status(text: str) -> BoxStatus:
    """Read bubblewrap's report: JSON documents one after the other, the last perhaps cut."""
    facts: dict[str, Any] = {}
    decoder = json.JSONDecoder()
    position = 0
    with suppress(ValueError):
        while start := text.find("{", position) + 1:
            document, position = decoder.raw_decode(text, start - 1)
            facts.update(document)
    return BoxStatus(
        pid=facts.get("child-pid"),
        pid_ns=facts.get("pid-namespace"),
        exit_code=facts.get("exit-code"),
    )
