"""Hostile loads in a container: only after its limits were read back, and never without an end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import docker
from anyio import to_thread

from sandboxd.backends.docker import DockerBackend
from sandboxd.backends.protocol import BoxRef
from sandboxd.guest import Guest
from sandboxd.model.claim import Claim
from sandboxd.model.command import Command, ExecRecord
from sandboxd.model.ids import new_id
from sandboxd.model.template import BoxSpec
from tests.support.docker_boxes import order
from tests.support.limits import READ_LIMITS, assert_held


@dataclass(frozen=True, slots=True)
class Target:
    """A box to be attacked from inside."""

    backend: DockerBackend
    box: BoxRef
    guest: Guest

    async def run(self, text: str, *, user: str = "", timeout_s: float = 20) -> ExecRecord:
        """Shell text to its end."""
        command = Command(
            exec_id=new_id("exec"), argv=("/bin/sh", "-c", text), user=user, timeout_s=timeout_s
        )
        with anyio.fail_after(timeout_s + 15):
            return await self.guest.run(command, wait=True)

    async def start(self, text: str, *, timeout_s: float = 30) -> None:
        """Shell text that runs on by itself."""
        command = Command(exec_id=new_id("exec"), argv=("/bin/sh", "-c", text), timeout_s=timeout_s)
        with anyio.fail_after(15):
            await self.guest.run(command, wait=False)

    async def says(self, text: str, *, user: str = "") -> str:
        """What shell text wrote, both streams."""
        record = await self.run(text, user=user)
        return (record.stdout.head + record.stderr.head).decode()


@asynccontextmanager
async def target(backend: DockerBackend, spec: BoxSpec) -> AsyncIterator[Target]:
    """A claimed box whose limits of processes and memory hold; it is gone at the end."""
    with anyio.fail_after(60):
        box = await backend.make(order(spec))
    guest = Guest(lambda: backend.connect(box))
    try:
        # The life is the watchdog: the guest ends itself and all that runs here.
        await guest.claim(Claim(lease_id=new_id("sbx"), workdir="/workspace", life_s=120))
        opened = Target(backend, box, guest)
        wanted = spec.resources
        read = await opened.says(READ_LIMITS)
        assert_held(read, pids=wanted.pids, memory_mb=wanted.memory_mb)
        yield opened
    finally:
        await guest.aclose()
        with anyio.fail_after(60, shield=True):
            await backend.dispose(box)


async def until(holds: Callable[[], Awaitable[bool]], *, within_s: float) -> None:
    """Wait until something is so. Raises TimeoutError."""
    with anyio.fail_after(within_s):
        while not await holds():  # noqa: ASYNC110 - what is waited for tells nobody
            await anyio.sleep(0.1)


@asynccontextmanager
async def image_with(client: docker.APIClient, image: str, *changes: str) -> AsyncIterator[str]:
    """An image that is another one but for these lines of a Dockerfile; its id."""

    def derive() -> str:
        made = client.create_container(image, ["/none"])["Id"]
        try:
            return str(client.commit(made, changes=list(changes))["Id"])
        finally:
            client.remove_container(made, force=True)

    derived = await to_thread.run_sync(derive)
    try:
        yield derived
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(lambda: client.remove_image(derived, force=True))


def processes_of(box: BoxRef) -> set[Path]:
    """Every process in the pid namespace of a box, as the machine sees it."""
    wanted = int(box.details["pid_ns"])
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "ns" / "pid").stat().st_ino == wanted:
                found.add(entry)
        except OSError:
            continue
    return found
