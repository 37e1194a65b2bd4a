"""The daemon's image from Debian packages and a package index, where no image registry answers.

What it stands on is kept under the digest of its inputs, and so is each image made on it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tomllib
import zipfile
from pathlib import Path

from scripts.images import cache, debian
from scripts.images.archive import ImageWords, write_archive
from scripts.images.machine import machines_bundle
from scripts.images.recipe import CACHE, FOLDER, PATH, ROOT, SUITE, Recipe
from scripts.images.steps import step

USER = "10001:10001"
ENVIRONMENT = {
    "PATH": f"/opt/sandboxd/bin:{PATH}",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "SANDBOXD_STATE_DIR": "/var/lib/sandboxd",
    "HOME": "/var/lib/sandboxd",
}
HEALTH = (
    "python3",
    "-c",
    "import urllib.request as u; u.urlopen('http://127.0.0.1:8420/readyz', timeout=3)",
)
_EXTRAS = ("daemon", "otel")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def requirements() -> str:
    """All that the project needs in its image, a line each."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for name in _EXTRAS for line in extras[name])]
    return "".join(f"{line}\n" for line in wanted)


def daemon_tar(wheel: Path) -> Path:
    """The image's root as a tar file, for this machine's processor. Needs root. Raises ImageError.

    wheel: of this project, with the guest in it.
    """
    files = {
        "install.sh": (FOLDER / "daemon" / "install.sh").read_bytes(),
        "requirements.txt": requirements().encode(),
    }
    folder = CACHE / f"daemon-{_digest(files)}"
    with cache.builds():
        ground, made = folder / "ground.tar", folder / f"{_contents(wheel)}.tar"
        if not ground.exists():
            _make_ground(files, folder)
        if not made.exists():
            for old in folder.glob("*.tar"):
                if old != ground:
                    old.unlink()
            _make(files | {wheel.name: wheel.read_bytes()}, ground, made)
        os.utime(folder)
    return made


def write_daemon_image(into: Path, wheel: Path, *, reference: str) -> None:
    """Write the image to a file in the form of `docker save`. Raises ImageError."""
    write_archive(daemon_tar(wheel), into, words=words(reference))


def words(reference: str) -> ImageWords:
    """What the image says of itself; images/daemon/Dockerfile says the same."""
    return ImageWords(
        reference=reference,
        architecture=_ARCHITECTURES[platform.machine()],
        env=ENVIRONMENT,
        entrypoint=("sandboxd",),
        command=("serve",),
        user=USER,
        health=HEALTH,
    )


def _make_ground(files: dict[str, bytes], folder: Path) -> None:
    recipe, log = Recipe(ca_bundle=machines_bundle()), CACHE / "build.log"
    with cache.work_folder() as work:
        root = work / "root"
        debian.bootstrap(recipe, root, log=log)
        text = "what the daemon stands on, in it"
        debian.run_inside(recipe, root, files, text=text, word="requirements", log=log)
        debian.pack(root, work / "ground.tar", log=log)
        shutil.rmtree(root)
        work.rename(folder)


def _make(files: dict[str, bytes], ground: Path, into: Path) -> None:
    recipe, log = Recipe(ca_bundle=machines_bundle()), CACHE / "build.log"
    with cache.work_folder() as work:
        root = work / "root"
        root.mkdir()
        unpack = ["tar", "-C", str(root), "--numeric-owner", "-xpf", str(ground)]
        step("unpacking what the daemon stands on", unpack, log=log, mend="Is the disk full?")
        debian.run_inside(recipe, root, files, text="the daemon in it", word="daemon", log=log)
        debian.pack(root, work / "image.tar", log=log)
        (work / "image.tar").rename(into)


def _digest(files: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for part in (*files.values(), SUITE.encode(), platform.machine().encode()):
        digest.update(part + b"\0")
    return digest.hexdigest()[:16]


def _contents(wheel: Path) -> str:
    """Of what is in it: two wheels of the same files differ in their times alone."""
    with zipfile.ZipFile(wheel) as archive:
        told = sorted((member.filename, member.CRC) for member in archive.infolist())
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]
