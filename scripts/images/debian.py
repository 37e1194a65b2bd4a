"""Roots made from Debian packages alone, where no image registry answers. Needs root, no engine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from scripts.images.machine import network_environment
from scripts.images.recipe import FOLDER, INPUTS, NAMES, PATH, ImageError, Recipe
from scripts.images.steps import require, step

# Not of the image: what a kernel mounts there, and what the machine had left.
_LEFT_OUT = ("./dev/*", "./proc/*", "./sys/*", "./run/*", "./tmp/*", "./setup")
# What is mounted ends with the step, and so does everything it started, however it ends.
_APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
_MEND_MIRROR = (
    "Look whether this machine reaches a Debian mirror (`apt-get update`); --mirror names another."
)
_MEND_INDEX = "Look whether this machine reaches its package index (`pip download numpy`)."


def build_tars(recipe: Recipe, into: Path, *, log: Path) -> dict[str, Path]:
    """Build all images; each one's root as a tar file in the folder `into`, by name.

    Raises ImageError.
    """
    root = into / "root"
    tars = {}
    try:
        bootstrap(recipe, root, log=log)
        for name in NAMES:
            _install(recipe, name, root, log=log)
            tars[name] = into / f"{name}.tar"
            pack(root, tars[name], log=log)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return tars


def bootstrap(recipe: Recipe, root: Path, *, log: Path) -> None:
    """Make a Debian of the least packages in the folder. Raises ImageError."""
    if os.geteuid() != 0:
        raise ImageError("a Debian root is made by root only: run this with sudo")
    require("debootstrap", "debootstrap")
    command = [*_APART, "debootstrap", "--variant=minbase", recipe.suite, str(root)]
    if recipe.mirror:
        command.append(recipe.mirror)
    step(f"a Debian {recipe.suite} root", command, log=log, mend=_MEND_MIRROR)


def _install(recipe: Recipe, name: str, root: Path, *, log: Path) -> None:
    files = {file: (FOLDER / file).read_bytes() for file in INPUTS}
    run_inside(recipe, root, files, text=f"the image {name} in it", word=name, log=log)


def run_inside(
    recipe: Recipe, root: Path, files: Mapping[str, bytes], *, text: str, word: str, log: Path
) -> None:
    """Run `install.sh WORD`, one of the files, in the root, in namespaces whose mounts end with it.

    files: by name; they lie in /setup meanwhile. Raises ImageError.
    """
    setup = root / "setup"
    setup.mkdir(exist_ok=True)
    for name, content in {**files, "ca.pem": recipe.ca_bundle}.items():
        (setup / name).write_bytes(content)
    shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
    inside = [*_APART, f"--mount-proc={root}/proc", "chroot"]
    command = [*inside, str(root), "env", "-i", *_environment(recipe)]
    script = [*command, "sh", "/setup/install.sh", word]
    step(text, script, log=log, mend=f"{_MEND_MIRROR} {_MEND_INDEX}")
    for name in ("resolv.conf", "hostname"):
        (root / "etc" / name).write_text("")
    shutil.rmtree(setup)


def _environment(recipe: Recipe) -> list[str]:
    env = network_environment() | {"KEEP_CA": str(int(recipe.keep_ca)), "PATH": PATH}
    return [f"{name}={value}" for name, value in env.items()]


def pack(root: Path, tar: Path, *, log: Path) -> None:
    """The root as a tar file. Raises ImageError."""
    excluded = [f"--exclude={pattern}" for pattern in _LEFT_OUT]
    flags = ["--numeric-owner", "--sort=name", "--one-file-system"]
    command = ["tar", "-C", str(root), *flags, *excluded, "-cf", str(tar), "."]
    step(f"packing {tar.name}", command, log=log, mend="Is the disk full?")
