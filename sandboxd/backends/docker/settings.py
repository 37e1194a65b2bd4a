"""What an operator decides of this backend, as its own parts read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sandboxd.backends.docker.imaging.nouns import ImageSettings
from sandboxd.backends.parts.installation import refuse_odd_installation

GuestMode = Literal["auto", "socket", "tcp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerSettings:
    """Which engine, and what is kept beside it.

    run_dir: the short directory of sockets; None chooses one by user and installation.
    host: the engine's address; empty: DOCKER_HOST, else the usual socket. tls_dir: the folder of
    keys for one on another machine; None: as the docker program's variables say.
    guest: how guests are reached; `auto` decides by where the engine is.
    starting: containers that start at once; 0: one more than there are cores.
    ready_timeout_s: for a guest to answer. disk_every_s: between two readings of what boxes wrote.
    orphan_s: without a word, after which a box that is not leased ends itself.
    network: the engine's network of boxes that may reach the internet; empty: one of our own.
    images: None for all defaults. allow_images: patterns of what callers may name beside the
    images of templates. secret: for the tokens of guests that are reached by TCP.
    """

    state_dir: Path
    installation: str
    run_dir: Path | None = None
    host: str = ""
    tls_dir: Path | None = None
    guest: GuestMode = "auto"
    starting: int = 0
    ready_timeout_s: float = 60.0
    disk_every_s: float = 5.0
    orphan_s: float = 3600.0
    network: str = ""
    images: ImageSettings | None = None
    allow_images: tuple[str, ...] = ()
    secret: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        """Refuse a name that could leave the directories made after it."""
        refuse_odd_installation(self.installation)

    @property
    def tag(self) -> str:
        """The short name of this installation, in the names of its containers and networks."""
        return self.installation[:8]

    @property
    def home(self) -> Path:
        """Where this backend keeps what outlives a daemon."""
        return self.state_dir.absolute() / "docker"
