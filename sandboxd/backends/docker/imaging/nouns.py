"""What the imaging rooms speak of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Who we are at a registry. The password is read anew for each pull: it may be a short-lived
    token that somebody renews.
    """

    username: str
    password_file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """What an operator may decide of images.

    directory: where the ledger lies; made if missing. installation: marks our containers.
    logins: by registry host (`host[:port]`); of others, the docker configuration of the daemon's
    user is asked. disk_mb: what images that we pulled may take together; 0: whatever they take.
    pulls_per_registry: at once. stall_s: how long a pull may show no progress.
    """

    directory: Path
    installation: str
    logins: Mapping[str, Login] = field(default_factory=dict)
    disk_mb: int = 0
    pulls_per_registry: int = 2
    stall_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """An image that the engine has. user: its USER, "" for root. digest: as its registry has it."""

    image_id: str
    user: str
    env: tuple[str, ...]
    os: str
    architecture: str
    digest: str | None
    size_bytes: int
