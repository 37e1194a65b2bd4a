"""What is built: the images' names, their inputs, and the digest that names a build."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "images"
CACHE = ROOT / "build" / "images"

NAMES = ("base", "python")  # each is made on top of the one before
INPUTS = ("install.sh", "requirements.txt", "Dockerfile")
REGISTRY_BASE = "python:3.12-slim"
SUITE = "bookworm"

_COMMANDS = {"base": '["bash"]', "python": '["python3"]'}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
_BUNDLE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS")
LABEL = "sandboxd.build"


class ImageError(Exception):
    """An image cannot be built; the text ends with the one thing to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How the images are built.

    suite, mirror: Debian's, where no registry answers; an empty mirror is debootstrap's own choice.
    ca_bundle: PEM of more authorities to trust while building; keep_ca: in the image too.
    """

    suite: str = SUITE
    mirror: str = ""
    ca_bundle: bytes = b""
    keep_ca: bool = False

    def digest(self, source: str) -> str:
        """Names what a build is made of; equal digests need no second build.

        source: "debian", or the id of the registry's image.
        """
        digest = hashlib.sha256()
        for path in (*(FOLDER / name for name in INPUTS), Path(__file__).with_name("debian.py")):
            digest.update(path.read_bytes())
        kept = self.ca_bundle if self.keep_ca else b""
        for part in (source, self.suite, self.mirror, platform.machine()):
            digest.update(part.encode() + b"\0")
        digest.update(kept)
        return digest.hexdigest()[:16]

    def changes(self, name: str, digest: str) -> list[str]:
        """What an engine is told of the image, in a Dockerfile's words."""
        kept = [f"ENV {variable}={_BUNDLE}" for variable in _BUNDLE_VARIABLES if self.keep_ca]
        return [
            f"ENV PATH={PATH}",
            "ENV LANG=C.UTF-8",
            *kept,
            "WORKDIR /workspace",
            f"CMD {_COMMANDS[name]}",
            f"LABEL {LABEL}={digest}",
        ]


def say(text: str) -> None:
    """One line of progress."""
    print(f"images: {text}", flush=True)
