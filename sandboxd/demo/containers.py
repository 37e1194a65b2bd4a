"""The demo's dealings with a container engine: which image, and which containers are left."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from anyio import to_thread

from sandboxd.cli.faults import CliError

if TYPE_CHECKING:
    from docker import APIClient

OWN_IMAGE = "sandboxd/python:latest"
PUBLIC_IMAGE = "python:3.12-slim"


def choose_image() -> str:
    """Our own image if the engine has it, else the public one, pulled if it must be. Blocking.

    Raises CliError naming what to do where the engine can have neither.
    """
    from sandboxd.backends.docker.engine import EngineRefused, connect, translated
    from sandboxd.errors import SandboxdError

    with closing(connect("")) as api:
        for name in (OWN_IMAGE, PUBLIC_IMAGE):
            if _has(api, name):
                return name
        print(f"the engine has no {OWN_IMAGE} (`make images` builds it): pulling {PUBLIC_IMAGE}")
        repository, _, tag = PUBLIC_IMAGE.partition(":")
        try:
            translated(api.pull, repository, tag=tag)
        except (EngineRefused, SandboxdError) as error:
            raise CliError(
                f"the engine can pull no {PUBLIC_IMAGE}: {error.detail[:300]}\n"
                f"to do: `make images` builds {OWN_IMAGE} without a registry"
            ) from error
    return PUBLIC_IMAGE


async def containers_of(installation: str) -> list[str]:
    """The names of the containers that carry this installation's label."""
    return await to_thread.run_sync(_containers_of, installation)


def _containers_of(installation: str) -> list[str]:
    from sandboxd.backends.docker.engine import connect, translated
    from sandboxd.backends.docker.labels import owned_by

    with closing(connect("")) as api:
        found = translated(api.containers, all=True, filters=owned_by(installation))
    return sorted(container["Names"][0].removeprefix("/") for container in found)


def _has(api: APIClient, name: str) -> bool:
    from sandboxd.backends.docker.engine import EngineRefused, translated

    try:
        translated(api.inspect_image, name)
    except EngineRefused:
        return False
    return True
