"""What the tests of images do again and again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from sandboxd.backends.docker.engine import Engine
from sandboxd.backends.docker.imaging import DockerImages, ImageSettings, Login, open_images
from sandboxd.errors import SandboxdError
from sandboxd.model.template import Pull

MIB = 1 << 20


@asynccontextmanager
async def images_of(
    engine: Engine, place: Path, *, logins: dict[str, Login] | None = None, **more: float
) -> AsyncIterator[DockerImages]:
    settings = ImageSettings(
        directory=place / "docker",
        installation="tests",
        logins=logins or {},
        disk_mb=int(more.get("disk_mb", 0)),
        stall_s=more.get("stall_s", 30.0),
    )
    async with open_images(engine, settings) as images:
        yield images


async def refused(images: DockerImages, reference: str, *, pull: Pull = "missing") -> SandboxdError:
    """The error of an image that cannot be had, which must come soon."""
    with anyio.fail_after(15), pytest.raises(SandboxdError) as caught:
        await images.ensure(reference, pull=pull)
    return caught.value


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(15):
        while not condition():  # noqa: ASYNC110 - an engine sends no events of this
            await anyio.sleep(0.01)
