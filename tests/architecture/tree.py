"""The project's own files: what git tracks or would, so never what is built or cached."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("client/sandboxd_client/_sync/", "sandboxd/wire/http1_sync.py")


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that is or would be committed; without git, all below the usual folders."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            timeout=20,
        ).stdout.decode()
        paths = [ROOT / name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        folders = ("sandboxd", "client", "images", "scripts", "tests", "examples", "docs")
        paths = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    skipped = {"__pycache__", "bin"}
    return tuple(
        path for path in paths if path.is_file() and not skipped & set(path.relative_to(ROOT).parts)
    )


def python_files(*folders: str) -> list[Path]:
    """Hand-written Python below these folders."""
    return [
        path
        for path in tracked()
        if path.suffix == ".py" and name_of(path).startswith(folders) and not is_generated(path)
    ]


def name_of(path: Path) -> str:
    """Its name from the project's root, with forward slashes."""
    return path.relative_to(ROOT).as_posix()


def is_generated(path: Path) -> bool:
    """Whether a script writes it."""
    return name_of(path).startswith(GENERATED)


def text_of(path: Path) -> str:
    """Its text; empty for what is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""
