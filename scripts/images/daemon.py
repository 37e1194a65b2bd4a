"""`make daemon-image`: builds the daemon's own image into an engine, from a wheel of this tree."""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
from pathlib import Path

from docker import APIClient

from scripts.images import engine
from scripts.images.machine import machines_bundle, network_environment
from scripts.images.recipe import FOLDER, REGISTRY_BASE, ROOT, ImageError, say

IMAGE = "sandboxd/daemon:latest"
_WHEEL_S = 1200


def build_daemon_image(
    client: APIClient, *, base: str = REGISTRY_BASE, tag: str = IMAGE, wheels: Path | None = None
) -> str:
    """Build it from any image with Python 3.11 or newer and pip. Returns the tag.

    wheels: a folder that has a wheel of all it needs but of this project; None: pip's index has.
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
            decode=True,
        )
        engine.raise_for_errors(said)
    say(f"{tag} is in the engine")
    return tag


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
        "Dockerfile": (FOLDER / "daemon" / "Dockerfile").read_bytes(),
        "ca.pem": machines_bundle(),
    }
    return engine.context_of(files | {wheel.name: wheel.read_bytes() for wheel in wheels})


def main(argv: list[str]) -> int:
    """Build as told. 1 with the reason where that fails."""
    parser = argparse.ArgumentParser(prog="python -m scripts.images.daemon", description=__doc__)
    parser.add_argument("--from", dest="base", default=REGISTRY_BASE, metavar="IMAGE")
    parser.add_argument("--tag", default=IMAGE, metavar="REFERENCE")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="install from these alone")
    args = parser.parse_args(argv)
    try:
        with engine.engine_client() as client:
            build_daemon_image(client, base=args.base, tag=args.tag, wheels=args.wheels)
    except ImageError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
