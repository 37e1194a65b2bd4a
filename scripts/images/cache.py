"""Builds that are kept: each under the digest of its inputs, one builder at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.images import debian
from scripts.images.machine import machines_bundle
from scripts.images.recipe import CACHE, NAMES, Recipe, say

_KEPT_S = 86_400.0
_MAKING = "making-"


def cached_tar(name: str) -> Path:
    """The root of that image, made from Debian packages, as a tar file; built if it must be.

    This is what the tests use: it needs neither an engine nor a registry. Raises ImageError.
    """
    return cached_tars(Recipe(ca_bundle=machines_bundle()))[name]


def cached_tars(recipe: Recipe) -> dict[str, Path]:
    """All images' roots from Debian packages, by name."""
    folder = CACHE / recipe.digest("debian")
    tars = {name: folder / f"{name}.tar" for name in NAMES}
    with builds():
        if not all(tar.exists() for tar in tars.values()):
            _build(recipe, folder)
        os.utime(folder)
    return tars


def _build(recipe: Recipe, folder: Path) -> None:
    _drop_old()
    with work_folder() as work:
        debian.build_tars(recipe, work, log=CACHE / "build.log")
        work.rename(folder)


@contextmanager
def work_folder() -> Iterator[Path]:
    """A folder to build in, beside what is kept; what is not renamed goes at the end."""
    work = Path(tempfile.mkdtemp(prefix=_MAKING, dir=CACHE))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _drop_old() -> None:
    """What nobody asked for since yesterday, and what a killed build left."""
    for path in CACHE.iterdir():
        is_old = path.is_dir() and path.stat().st_mtime < time.time() - _KEPT_S
        if is_old or path.name.startswith(_MAKING):
            shutil.rmtree(path)


@contextmanager
def builds() -> Iterator[None]:
    """The folder of kept builds, for one builder alone."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another build is at work here: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
