"""Environments of foreign packages, each made once into build/foreign from a list of pinned
versions: their needs clash with ours and with each other's. Some 900 MB together.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.daemon import ROOT

_PLACE = ROOT / "build" / "foreign"
_LISTS = Path(__file__).parent / "requirements"
_INSIDE = "inside"  # what harnesses install in boxes, and `uv`
_STEP_S = 600
_SYSTEM_PYTHON = "/usr/bin/python3"


def environment(name: str) -> Path:
    """The `bin` of an environment, as requirements/NAME.txt has it. Where it cannot be had the test
    is skipped, with the reason, but never in CI.
    """
    return _made(name, _make_environment) / "bin"


def wheels(name: str) -> Path:
    """A folder of wheels for the Python inside of boxes on the image `host`, and `uv` beside them:
    for boxes that reach no package index.
    """
    return _made(name, _make_wheels)


def all_names() -> list[str]:
    """Of the environments that there are lists for; wheels are no environment."""
    return sorted(each.stem for each in _LISTS.glob("*.txt") if each.stem != _INSIDE)


def _make_environment(list_: Path, place: Path) -> None:
    """By `uv`, which takes a fifth of pip's time."""
    uv = str(wheels(_INSIDE) / "bin" / "uv")
    python = str(place / "bin" / "python")
    _run([sys.executable, "-m", "venv", "--without-pip", str(place)])
    _run([uv, "pip", "install", "--quiet", "--no-deps", "--python", python, "-r", str(list_)])


def _make_wheels(list_: Path, place: Path) -> None:
    version = subprocess.run(
        [_SYSTEM_PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout.strip()  # fmt: skip
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--no-deps"]
    _run([*pip, "--python-version", version, "-r", str(list_), "--dest", str(place)])
    (uv,) = place.glob("uv-*.whl")
    shutil.unpack_archive(uv, place / "unpacked", "zip")
    (program,) = place.glob("unpacked/uv-*.data/scripts/uv")
    (place / "bin").mkdir()
    program.chmod(0o755)
    program.rename(place / "bin" / "uv")
    shutil.rmtree(place / "unpacked")
    cache = place / "cache"  # of `uv`, written from inside of boxes, whose root is nobody here
    cache.mkdir()
    cache.chmod(0o777)
    _index(place)


def _index(place: Path) -> None:
    """The wheels as a package index in files, below `simple`."""
    for wheel in place.glob("*.whl"):
        name = wheel.name.split("-")[0].replace("_", "-").lower()
        page = place / "simple" / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f'<a href="../../{wheel.name}">{wheel.name}</a>')


def _made(name: str, make: Callable[[Path, Path], None]) -> Path:
    list_ = _LISTS / f"{name}.txt"
    digest = hashlib.sha256(list_.read_bytes() + sys.version.encode()).hexdigest()[:12]
    place = _PLACE / f"{name}-{digest}"
    _PLACE.mkdir(parents=True, exist_ok=True)
    with (_PLACE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "made").exists():
            for older in _PLACE.glob(f"{name}-*"):
                if re.fullmatch(rf"{re.escape(name)}-[0-9a-f]{{12}}", older.name):
                    shutil.rmtree(older)
            place.mkdir()
            make(list_, place)
            (place / "made").touch()
    return place


def _run(words: list[str]) -> None:
    # The machine's certificates are for whatever stands between it and a package index.
    own = {"UV_CACHE_DIR": str(_PLACE / "uv-cache"), "UV_SYSTEM_CERTS": "1"}
    done = subprocess.run(
        words,
        env={**os.environ, **own},
        capture_output=True, text=True, timeout=_STEP_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        assert os.environ.get("CI") != "true", done.stderr
        pytest.skip(f"foreign packages cannot be had here: {done.stderr[-300:]}")


if __name__ == "__main__":  # before tests whose deadlines leave no time for it
    for each in all_names():
        environment(each)
