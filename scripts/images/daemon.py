"""`make daemon-image`: builds the daemon's own image into an engine, or to a file, from a wheel of
this tree.

An engine builds it from a registry's image; where no registry answers it is made of Debian packages
and a package index.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
from pathlib import Path

from docker import APIClient

from scripts.images import daemon_root, engine
from scripts.images.machine import machines_bundle, network_environment
from scripts.images.recipe import FOLDER, REGISTRY_BASE, ROOT, ImageError, say

IMAGE = "sandboxd/daemon:latest"
PLATFORMS = ("linux/amd64", "linux/arm64")
_WHEEL_S = 1200


def build_daemon_image(
    client: APIClient,
    *,
    base: str = REGISTRY_BASE,
    tag: str = IMAGE,
    wheels: Path | None = None,
    platform: str | None = None,
) -> str:
    """Build it from any image with Python 3.11 or newer and venv. Returns the tag.

    wheels: a folder that has a wheel of all it needs but of this project; None: pip's index has.
    platform: None is the engine's own.

    Raises ImageError.
    """
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(Path(folder))
        others = sorted(wheels.glob("*.whl")) if wheels else []
        arguments = {"FROM": base} | ({"PIP_NO_INDEX": "1"} if wheels else {})
        say(f"building {tag} from {base} …")
        said = client.build(
            fileobj=_context([wheel, *others]),
            custom_context=True,
            tag=tag,
            network_mode="host",
            rm=True,
            forcerm=True,
            buildargs=network_environment() | arguments,
            platform=platform,
            decode=True,
        )
        engine.raise_for_errors(said)
    say(f"{tag} is in the engine")
    return tag


def write_from_debian(into: Path, *, tag: str = IMAGE) -> None:
    """Write it to a file in the form of `docker save`; asks no engine and no registry. Needs root.

    Raises ImageError.
    """
    with tempfile.TemporaryDirectory() as folder:
        daemon_root.write_daemon_image(into, build_wheel(Path(folder)), reference=tag)


def build_wheel(folder: Path) -> Path:
    """A wheel of this tree, with the guest in it. Raises ImageError."""
    say("building a wheel …")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=_WHEEL_S, check=False
    )
    if done.returncode != 0:
        raise ImageError(f"no wheel:\n{(done.stdout + done.stderr)[-2000:]}\nTo do: make setup")
    (wheel,) = folder.glob("*.whl")
    return wheel


def _context(wheels: list[Path]) -> io.BytesIO:
    files = {
        **{name: (FOLDER / "daemon" / name).read_bytes() for name in ("Dockerfile", "install.sh")},
        "requirements.txt": daemon_root.requirements().encode(),
        "ca.pem": machines_bundle(),
    }
    return engine.context_of(files | {wheel.name: wheel.read_bytes() for wheel in wheels})


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.images.daemon", description=__doc__)
    add = parser.add_argument
    add("--from", dest="base", metavar="IMAGE", help=f"what from (default {REGISTRY_BASE})")
    add("--source", choices=("auto", "registry", "debian"), default="auto", help="what from")
    add("--tag", default=IMAGE, metavar="REFERENCE")
    add("--platform", choices=PLATFORMS, help="another processor than the engine's")
    add("--wheels", type=Path, metavar="DIR", help="install from these alone")
    add("--tar", type=Path, metavar="FILE", help="write it there, from Debian; no engine used")
    return parser.parse_args(argv)


def build(args: argparse.Namespace) -> None:
    """Build what was asked for. Raises ImageError."""
    if args.tar is not None:
        write_from_debian(args.tar, tag=args.tag)
        say(f"{args.tar} is written")
        return
    with engine.engine_client() as client:
        if _can_build(client, args):
            base = args.base or REGISTRY_BASE
            build_daemon_image(
                client, base=base, tag=args.tag, wheels=args.wheels, platform=args.platform
            )
            return
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / "daemon.tar"
            write_from_debian(archive, tag=args.tag)
            with archive.open("rb") as data:
                engine.raise_for_errors(client.load_image(data))  # type: ignore[no-untyped-call]
        say(f"{args.tag} is in the engine")


def _can_build(client: APIClient, args: argparse.Namespace) -> bool:
    """Whether the engine has something to build from."""
    if args.source == "debian":
        return False
    if args.base or args.platform or args.wheels:
        return True
    if engine.registry_image(client):
        return True
    if args.source == "registry":
        raise ImageError("no registry answers: use --source debian, which needs none")
    return False


def main(argv: list[str]) -> int:
    """Build as told. 1 with the reason where that fails."""
    try:
        build(parse(argv))
    except ImageError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
