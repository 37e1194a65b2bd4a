"""Boxes on an engine of the tests' own, made of an image so small that it is there at once."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import docker

from sandboxd.backends.docker import DockerBackend, DockerSettings, open_docker
from sandboxd.backends.protocol import BoxOrder, BoxRef
from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest
from sandboxd.guest.inside import GUEST_INSIDE
from sandboxd.guest.run_dir import default_run_dir
from sandboxd.model.claim import Claim
from sandboxd.model.command import Command
from sandboxd.model.ids import new_id
from sandboxd.model.template import BoxSpec, Resources
from sandboxd.wire.codes import Outcome

BARE_IMAGE = "sandboxd/bare:latest"
# The one program of that image: the guest's own executable, which needs no library.
VERSION = (GUEST_INSIDE, "version")


def load_bare_image(client: docker.APIClient) -> str:
    """An image with nothing in it; its reference. There already is as good."""
    if client.images(BARE_IMAGE):
        return BARE_IMAGE
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name in ("tmp", "run"):
            directory = tarfile.TarInfo(name)
            directory.type = tarfile.DIRTYPE
            directory.mode = 0o755
            tar.addfile(directory)
    repository, _, tag = BARE_IMAGE.partition(":")
    client.import_image_from_data(data.getvalue(), repository=repository, tag=tag)
    return BARE_IMAGE


def spec(image: str = BARE_IMAGE, **resources: Any) -> BoxSpec:
    """A small box."""
    return BoxSpec(image=image, resources=Resources(memory_mb=64, pids=64, **resources))


def order(wanted: BoxSpec | None = None, *, box_id: str = "") -> BoxOrder:
    """An order for it, under a fresh id."""
    labels = {"installation": "tests", "pool": "checks", "made_at": "0"}
    return BoxOrder(box_id=box_id or new_id("box"), spec=wanted or spec(), labels=labels)


@asynccontextmanager
async def backend_on(host: str, **settings: Any) -> AsyncIterator[DockerBackend]:
    """A backend of an installation of its own; at the end all its boxes are gone."""
    with TemporaryDirectory(prefix="sbx-") as directory:
        state = {"state_dir": Path(directory), "installation": new_id("t")[2:14], **settings}
        chosen = DockerSettings(host=host, **state)
        async with open_docker(chosen) as backend:
            try:
                yield backend
            finally:
                with anyio.fail_after(60, shield=True):
                    await clear(backend)
        assert not default_run_dir(chosen.installation).exists()


async def clear(backend: DockerBackend) -> None:
    """Dispose of every box, and stay at it as the disposer does."""
    for box in await backend.list_owned():
        while True:
            try:
                await backend.dispose_remains(box.box_id)
                break
            except SandboxdError:
                await anyio.sleep(0.2)


async def works(backend: DockerBackend, box: BoxRef) -> bool:
    """Whether a command runs to its end in the box. Claims it under one name."""
    guest = Guest(lambda: backend.connect(box))
    try:
        await guest.claim(Claim(lease_id=box.box_id, workdir="/workspace", life_s=600))
        record = await guest.run(Command(exec_id=new_id("exec"), argv=VERSION), wait=True)
    finally:
        await guest.aclose()
    return (record.outcome, record.exit_code) == (Outcome.EXITED, 0)
