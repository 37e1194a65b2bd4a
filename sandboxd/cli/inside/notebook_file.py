"""Notebook files (nbformat 4): read, their code cells filled with what they showed, written."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandboxd.cli.faults import CliError, ExitCode
from sandboxd_client import Cell

_MOST_BYTES = 256 << 20
# Media types whose content is JSON and no text that is split into lines.
_JSON_KINDS = ("application/json", "+json")
_CUT = {
    "output_type": "stream",
    "name": "stderr",
    "text": "[not all that this cell showed was kept]\n",
}


@dataclass(frozen=True, slots=True)
class CodeCell:
    """A code cell of a notebook, and the object in the file that it is.

    may_raise: its author says so (tag `raises-exception`).
    """

    code: str
    may_raise: bool
    _told: dict[str, Any]

    @property
    def first_line(self) -> str:
        """The first line that says something."""
        return next(line.strip() for line in self.code.splitlines() if line.strip())

    def take(self, cell: Cell) -> None:
        """It ended so."""
        self._told["execution_count"] = cell.execution_count
        self.show(cell.outputs if not cell.truncated else (*cell.outputs, _CUT))

    def show(self, outputs: Iterable[Mapping[str, Any]]) -> None:
        """It showed that."""
        self._told["outputs"] = [_as_written(output) for output in outputs]


class Notebook:
    """A notebook. What its cells showed before is dropped as soon as one of them is to run."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._told = told

    @property
    def spec(self) -> str | None:
        """The kernelspec that it was written for, None where it does not say."""
        spec = self._told.get("metadata", {}).get("kernelspec") or {}
        return spec.get("name") or None

    def to_run(self) -> list[CodeCell]:
        """Its code cells, but for empty ones and those tagged `skip-execution`."""
        return [
            CodeCell(code, "raises-exception" in tags, told)
            for told, code, tags in self._code_cells()
            if code.strip() and "skip-execution" not in tags
        ]

    def clear(self) -> None:
        """Drop all that was shown."""
        for told, _, _ in self._code_cells():
            told |= {"execution_count": None, "outputs": []}

    def write(self, path: str) -> None:
        """As Jupyter writes it; `-` is standard output. A file is whole or as it was before."""
        # A lone surrogate is written as JSON escapes it, for no encoding has it.
        text = json.dumps(self._told, indent=1, ensure_ascii=False) + "\n"
        data = text.encode("utf-8", "backslashreplace")
        if path == "-":
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        elif _is_special(path):
            Path(path).write_bytes(data)
        else:
            _replace(Path(path).resolve(), data)

    def _code_cells(self) -> Iterator[tuple[dict[str, Any], str, list[str]]]:
        for told in self._told["cells"]:
            if told["cell_type"] == "code":
                tags = told.get("metadata", {}).get("tags") or []
                yield told, _text(told["source"]), tags


def read_notebook(path: str) -> Notebook:
    """From a file, or standard input for `-`. Raises CliError for what is no nbformat 4."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}", code=ExitCode.USAGE) from None
    if len(data) > _MOST_BYTES:
        raise _unusable(path, "is larger than any notebook should be")
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        raise _unusable(path, "is no notebook: it is not JSON") from None
    if not isinstance(told, dict) or not isinstance(told.get("nbformat"), int):
        raise _unusable(path, "is no notebook: it has no nbformat")
    if told["nbformat"] != 4:
        raise _unusable(
            path, f"is of nbformat {told['nbformat']}: save it in Jupyter as nbformat 4"
        )
    if (flaw := _flaw(told)) is not None:
        raise _unusable(path, f"is no notebook: {flaw}")
    return Notebook(told)


def target_beside(path: str) -> str:
    """Where what `path` showed is written if nobody says: to a file beside a file."""
    if path == "-" or _is_special(path):
        return "-"
    return str(Path(path).with_suffix(".out.ipynb"))


def check_target(path: str) -> None:
    """Raises CliError where nothing can be written, as far as that can be told before."""
    if path == "-":
        return
    if Path(path).is_dir():
        raise CliError(f"{path} is a folder: name a file to write", code=ExitCode.USAGE)
    folder = Path(path).resolve().parent
    if not _is_special(path) and not folder.is_dir():
        raise CliError(f"there is no folder to write {path} to", code=ExitCode.USAGE)
    places = [Path(path)] if Path(path).exists() else []
    places += [] if _is_special(path) else [folder]
    if not all(os.access(place, os.W_OK) for place in places):
        raise CliError(f"{path} cannot be written: permission denied", code=ExitCode.USAGE)


def _is_special(path: str) -> bool:
    """Whether it is a pipe, a terminal, `/dev/null`: what is written into, and never replaced."""
    return Path(path).exists() and not Path(path).is_file()


def _replace(target: Path, data: bytes) -> None:
    """All at once. Who may read what stood there may read what stands there then."""
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        fresh.touch()
        if target.exists():
            shutil.copymode(target, fresh)
            if sys.platform != "win32":
                with suppress(PermissionError):
                    shutil.chown(fresh, target.stat().st_uid, target.stat().st_gid)
        fresh.write_bytes(data)
        fresh.replace(target)
    finally:
        with suppress(OSError):
            fresh.unlink()


def _flaw(told: Mapping[str, Any]) -> str | None:
    """What keeps it from being one that can be run; None if nothing does."""
    metadata, cells = told.get("metadata", {}), told.get("cells")
    if not isinstance(metadata, dict):
        return "its metadata are no object"
    spec = metadata.get("kernelspec") or {}
    if not isinstance(spec, dict) or not isinstance(spec.get("name") or "", str):
        return "its kernelspec has no name"
    if not isinstance(cells, list):
        return "it has no cells"
    flaws = (_flaw_of(cell) for cell in cells)
    return next((f"cell {n}: {flaw}" for n, flaw in enumerate(flaws, 1) if flaw), None)


def _flaw_of(cell: Any) -> str | None:
    if not isinstance(cell, dict) or not isinstance(cell.get("cell_type"), str):
        return "it has no cell_type"
    source, metadata = cell.get("source"), cell.get("metadata", {})
    lines = source if isinstance(source, list) else [source]
    if not all(isinstance(line, str) and _is_text(line) for line in lines):
        return "its source is no text"
    if not isinstance(metadata, dict) or not isinstance(metadata.get("tags") or [], list):
        return "its metadata are no object"
    return None


def _is_text(line: str) -> bool:
    """Whether it can be sent: half of a character cannot."""
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unusable(path: str, why: str) -> CliError:
    return CliError(f"{path} {why}", code=ExitCode.USAGE)


def _text(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)


def _as_written(output: Mapping[str, Any]) -> dict[str, Any]:
    """With its texts in lines, as files have them, so that two versions can be compared."""
    written = dict(output)
    if isinstance(written.get("text"), str):
        written["text"] = written["text"].splitlines(keepends=True)
    if isinstance(written.get("data"), Mapping):
        written["data"] = {
            kind: content.splitlines(keepends=True)
            if isinstance(content, str) and not kind.endswith(_JSON_KINDS)
            else content
            for kind, content in written["data"].items()
        }
    return written
