"""The keys of `[backend.docker]` that are about images."""

from __future__ import annotations

from pydantic import Field

from sandboxd.settings.fields import Filled, RegistryHost, Table


class RegistryTable(Table):
    """Who we are at an image registry."""

    username: Filled
    """User name, or what stands for one beside a token."""
    password_file: Filled
    """A file that holds the password or token and nothing else; read anew for each pull."""


class ImageKeys(Table):
    """What an operator decides of images."""

    registries: dict[RegistryHost, RegistryTable] = {}
    """Credentials by registry, as `[backend.docker.registries."HOST"]`; of others, the docker
    configuration of the daemon's user is asked."""
    allow_images: list[Filled] = []
    """Patterns of images that callers may name, else only those of templates. `python` is read as
    `docker.io/library/python`; host, path and tag are matched each for itself with `*` and `?`; a
    pattern without a tag allows every tag and digest; `"*"` allows everything."""
    image_disk_mb: int = Field(0, ge=0, le=1 << 30)
    """What images that the daemon pulled may take together, in MiB, each with all its layers;
    beyond it those longest unused are dropped. 0: whatever they take."""
    pulls_per_registry: int = Field(2, ge=1, le=64)
    """Pulls at once from one registry."""
    pull_stall_s: float = Field(120, ge=1, le=3600)
    """Seconds without progress after which a pull is given up."""
