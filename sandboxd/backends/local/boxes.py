"""Boxes on disk: where each thing of a box lies, and the log that says whose it is.

The log begins before anything else of a box exists, so that whatever crashes in between, the box
is found again by its label; its first process is added to it once there is one. Blocking file
access; call from a worker thread.
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

from sandboxd.errors import SandboxdError
from sandboxd.linux.processes import ProcessMark, pids_naming
from sandboxd.linux.trees import remove_tree, spread
from sandboxd.wire.codes import ErrorCode

_BOX_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRecord:
    """What is remembered of a box: its labels, its limits, and its first process once known."""

    box_id: str
    labels: Mapping[str, str]
    disk_limit_bytes: int
    memory_limit_bytes: int
    process: ProcessMark | None = None


@dataclass(frozen=True, slots=True)
class BoxPlaces:
    """Where the parts of one box lie on the host."""

    home: Path  # <state>/boxes/<box_id>
    short: Path  # the same by a shorter path, since a socket's path must be short

    @property
    def log(self) -> Path:
        """The label of the box, and then its first process: JSON documents, one after the other."""
        return self.home / "box.json"

    @property
    def status(self) -> Path:
        """What bubblewrap says of the box, in as many: first its process, at last its exit code.

        A file of its own, since bubblewrap writes each of them in pieces.
        """
        return self.home / "status"

    @property
    def root(self) -> Path:
        """The box's own directory at `/`, where it has one."""
        return self.home / "root"

    @property
    def run(self) -> Path:
        """The directory that host and box share; the guest's socket is in it."""
        return self.home / "run"

    @property
    def complaints(self) -> Path:
        """What bubblewrap and the guest wrote to standard error."""
        return self.home / "stderr"

    @property
    def shared(self) -> Path:
        """`run` by the short way."""
        return self.short / "run"

    @property
    def socket(self) -> Path:
        """The guest's socket by the short way."""
        return self.shared / "s.sock"

    def upper(self, name: str) -> Path:
        """What the box writes over one layer."""
        return self.home / f"upper-{name}"

    def work(self, name: str) -> Path:
        """The overlay's own scratch directory for that layer."""
        return self.home / f"work-{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxStatus:
    """What bubblewrap reported so far."""

    pid: int | None = None
    pid_ns: int | None = None
    exit_code: int | None = None  # the first process's, 128 + signal if one ended it


class BoxShelf:
    """All boxes of one installation on disk."""

    def __init__(
        self, state_dir: Path, run_dir: Path, *, tag: str, group: int | None = None
    ) -> None:
        """tag: begins the paths of root's boxes where they are made.

        group: the boxes' own, where that is not ours, so that it alone gets at them.
        """
        self.boxes_dir = state_dir / "boxes"
        self._tag = tag
        self._short = short_way(run_dir)
        self._group = group

    def open(self) -> None:
        """Make the directory of all boxes, and the short way to it. Raises OSError."""
        self.boxes_dir.mkdir(parents=True, exist_ok=True)
        self._close_to_others(self.boxes_dir)
        spread(self.boxes_dir)
        with suppress(FileNotFoundError):
            self._short.unlink()
        self._short.symlink_to(self.boxes_dir)

    def close(self) -> None:
        """Take the short way away; the next to open the shelf makes it anew."""
        with suppress(FileNotFoundError):
            self._short.unlink()

    def _close_to_others(self, path: Path) -> None:
        """What a box's root leaves behind, set-user-id programs among it, is nobody else's."""
        if self._group is not None:
            os.chown(path, -1, self._group)
        path.chmod(0o700 if self._group is None else 0o710)

    def places(self, box_id: str) -> BoxPlaces:
        """Where a box lies, whether or not it exists. Raises `bad_request` for an unfit id."""
        if _BOX_ID.match(box_id) is None:
            raise SandboxdError(ErrorCode.BAD_REQUEST, f"{box_id!r} cannot name a box")
        return BoxPlaces(self.boxes_dir / box_id, self._short / box_id)

    def pids_naming(self, box_id: str) -> list[int]:
        """The bubblewraps that were told to make this box: by the stage's paths or by ours."""
        last = f"/{box_id}/run\0"
        return [
            *pids_naming(f"\0/{self._tag}-", last),
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
        _append(places.log, asdict(record))
        places.run.mkdir(mode=0o700)
        return places

    def note_process(self, box_id: str, mark: ProcessMark) -> None:
        """Write down the first process. Raises OSError."""
        _append(self.places(box_id).log, {"process": asdict(mark)})

    def read(self, box_id: str) -> BoxRecord | None:
        """The record; None if there is no such box, or only what is left of one."""
        try:
            facts = parse_documents(self.places(box_id).log.read_text(errors="replace"))
            mark = facts["process"]
            return BoxRecord(
                box_id=facts["box_id"],
                labels=dict(facts["labels"]),
                disk_limit_bytes=int(facts["disk_limit_bytes"]),
                memory_limit_bytes=int(facts["memory_limit_bytes"]),
                process=mark and ProcessMark(**mark),
            )
        except (OSError, ValueError, LookupError, TypeError):
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
        remove_tree(places.home, last=places.log.name)


def _is_box(path: Path) -> bool:
    return _BOX_ID.match(path.name) is not None and path.is_dir() and not path.is_symlink()


def short_way(run_dir: Path) -> Path:
    """The link in a run directory that leads to all boxes."""
    return run_dir / "b"


def _append(path: Path, document: Mapping[str, Any]) -> None:
    """Add a document in one write: whole, or cut off at the end of the file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, json.dumps(document).encode() + b"\n")
    finally:
        os.close(fd)


def parse_documents(text: str) -> dict[str, Any]:
    """All that JSON documents say, one after the other, the last perhaps cut; later ones count."""
    facts: dict[str, Any] = {}
    decoder = json.JSONDecoder()
    position = 0
    with suppress(ValueError):
        while start := text.find("{", position) + 1:
            document, position = decoder.raw_decode(text, start - 1)
            facts.update(document)
    return facts


def parse_status(text: str) -> BoxStatus:
    """Read bubblewrap's report."""
    facts = parse_documents(text)
    return BoxStatus(
        pid=facts.get("child-pid"),
        pid_ns=facts.get("pid-namespace"),
        exit_code=facts.get("exit-code"),
    )
