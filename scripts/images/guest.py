"""`make guest-image`: the guest agent's own image, from which pods get their guest.

It holds the one executable and nothing else: an init container of every pod copies it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from sandboxd.errors import SandboxdError
from sandboxd.guest.binary import guest_binary
from scripts.images import engine
from scripts.images.archive import ImageWords, layer_of, write_archive
from scripts.images.recipe import ImageError, say

IMAGE = "sandboxd/guest:latest"
EXECUTABLE = "sandbox-guest"
ARCHITECTURES = ("amd64", "arm64")


def write_guest_image(into: Path, *, reference: str = IMAGE, architecture: str = "amd64") -> None:
    """Write it to a file in the form of `docker save`.

    Raises ImageError where the guest was not built for that architecture.
    """
    try:
        binary = guest_binary(architecture)
    except SandboxdError as error:
        raise ImageError(error.detail) from error
    words = ImageWords(
        reference=reference, architecture=architecture, entrypoint=(f"/{EXECUTABLE}",)
    )
    with tempfile.TemporaryDirectory(dir=into.parent) as folder:
        layer = Path(folder) / "layer.tar"
        layer_of({EXECUTABLE: binary}, layer)
        write_archive(layer, into, words=words)


def main(argv: list[str]) -> int:
    """Build as told. 1 with the reason where that fails."""
    parser = argparse.ArgumentParser(prog="python -m scripts.images.guest", description=__doc__)
    parser.add_argument("--tag", default=IMAGE, metavar="REFERENCE")
    parser.add_argument("--architecture", choices=ARCHITECTURES, default="amd64")
    parser.add_argument("--tar", type=Path, metavar="FILE", help="write it there; no engine used")
    args = parser.parse_args(argv)
    try:
        _build(args.tag, architecture=args.architecture, tar=args.tar)
    except ImageError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


def _build(tag: str, *, architecture: str, tar: Path | None) -> None:
    if tar is not None:
        write_guest_image(tar, reference=tag, architecture=architecture)
        say(f"{tar} is written")
        return
    with engine.engine_client() as client, tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "guest.tar"
        write_guest_image(archive, reference=tag, architecture=architecture)
        with archive.open("rb") as data:
            engine.raise_for_errors(client.load_image(data))  # type: ignore[no-untyped-call]
    say(f"{tag} is in the engine")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
