"""Roots made from Debian packages alone, where no image registry answers. Needs root, no engine."""

from __future__ import annotations

import os
import shutil
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
    if os.geteuid() != 0:
        raise ImageError("a Debian root is made by root only: run this with sudo")
    require("debootstrap", "debootstrap")
    root = into / "root"
    tars = {}
    try:
        _bootstrap(recipe, root, log=log)
        for name in NAMES:
            _install(recipe, name, root, log=log)
            tars[name] = into / f"{name}.tar"
            _pack(root, tars[name], log=log)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return tars


def _bootstrap(recipe: Recipe, root: Path, *, log: Path) -> None:
    command = [*_APART, "debootstrap", "--variant=minbase", recipe.suite, str(root)]
    if recipe.mirror:
        command.append(recipe.mirror)
    step(f"a Debian {recipe.suite} root", command, log=log, mend=_MEND_MIRROR)


def _install(recipe: Recipe, name: str, root: Path, *, log: Path) -> None:
    """Run the image's own script in the root, in namespaces whose mounts end with it."""
    setup = root / "setup"
    setup.mkdir(exist_ok=True)
    for file in INPUTS:
        shutil.copy(FOLDER / file, setup)
    (setup / "ca.pem").write_bytes(recipe.ca_bundle)
    shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
    inside = [*_APART, f"--mount-proc={root}/proc", "chroot"]
    command = [*inside, str(root), "env", "-i", *_environment(recipe)]
    script = [*command, "sh", "/setup/install.sh", name]
    step(f"the image {name} in it", script, log=log, mend=f"{_MEND_MIRROR} {_MEND_INDEX}")
    for file in ("resolv.conf", "hostname"):
        (root / "etc" / file).write_text("")
    shutil.rmtree(setup)


def _environment(recipe: Recipe) -> list[str]:
    env = network_environment() | {"KEEP_CA": str(int(recipe.keep_ca)), "PATH": PATH}
    return [f"{name}={value}" for name, value in env.items()]


def _pack(root: Path, tar: Path, *, log: Path) -> None:
    excluded = [f"--exclude={pattern}" for pattern in _LEFT_OUT]
    flags = ["--numeric-owner", "--sort=name", "--one-file-system"]
    command = ["tar", "-C", str(root), *flags, *excluded, "-cf", str(tar), "."]
    step(f"packing {tar.name}", command, log=log, mend="Is the disk full?")
