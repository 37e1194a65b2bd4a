"""The docker backend, put together. Each part does its own; this file only says in what order."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import NoReturn

from anyio.abc import ByteStream

from sandboxd.backends.docker.imaging import DockerImages
from sandboxd.backends.docker.making import Maker
from sandboxd.backends.docker.reaching.way import Reach
from sandboxd.backends.docker.records import (
    NAME,
    record_of_reference,
    reference,
)
from sandboxd.backends.docker.removing import Remover
from sandboxd.backends.docker.watching.census import Census
from sandboxd.backends.docker.watching.judging import Judge
from sandboxd.backends.docker.watching.living import LivingBox, Roster
from sandboxd.backends.parts.deaths import lost
from sandboxd.backends.protocol import (
    BoxOrder,
    BoxRef,
    Capabilities,
    Death,
    Deeds,
    Images,
    OwnedBox,
    Readings,
)
from sandboxd.errors import SandboxdError
from sandboxd.model.template import BoxSpec
from sandboxd.wire.codes import ErrorCode


class DockerBackend:
    """Boxes as containers of one engine. Made by `open_docker` alone."""

    name = NAME

    def __init__(
        self,
        *,
        maker: Maker,
        remover: Remover,
        roster: Roster,
        judge: Judge,
        reach: Reach,
        census: Census,
        images: DockerImages,
        capabilities: Capabilities,
    ) -> None:
        self._maker = maker
        self._remover = remover
        self._roster = roster
        self._judge = judge
        self._reach = reach
        self._census = census
        self._capabilities = capabilities
        self.images: Images | None = images
        self.deeds: Deeds | None = None

    def capabilities(self) -> Capabilities:
        """As probed when it was opened."""
        return self._capabilities

    async def make(self, order: BoxOrder) -> BoxRef:
        """Make a box; see the protocol."""
        _refuse(order.spec, self._capabilities)
        record, pidfd = await self._maker.make(order)
        self._roster.add(record, pidfd)
        return reference(record)

    async def dispose(self, ref: BoxRef) -> None:
        """Remove a box; see the protocol."""
        await self._remover.remove(ref.box_id, record_of_reference(ref).container_id)

    async def dispose_remains(self, box_id: str) -> None:
        """Remove what is left of a make; see the protocol."""
        await self._remover.remove(box_id)

    async def look(self, ref: BoxRef) -> Death | None:
        """Whether it lives; adopts a box that another daemon made."""
        box = await self._find(ref)
        if box is None:
            return await self._judge.examine(record_of_reference(ref))
        if not box.is_dead:
            return None
        return await self._roster.death_of(box)

    async def list_owned(self) -> list[OwnedBox]:
        """Every container of ours, and every directory without one; see the protocol."""
        return await self._census.take()

    async def connect(self, ref: BoxRef) -> ByteStream:
        """A stream to the guest; see the protocol."""
        box = await self._find(ref)
        if box is None or box.gone.is_set():
            raise lost(box.death if box else await self.look(ref))
        return await self._reach.connect(box)

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Death]]:
        """Deaths from now on; see the protocol."""
        return self._roster.watch()

    async def read(self, ref: BoxRef) -> Readings:
        """What the control group and the last round of the disk watch say."""
        box = await self._find(ref)
        if box is None:
            return Readings()
        read = await box.read_group()
        return Readings(
            cpu_s=read.cpu_s,
            memory_bytes=read.memory_bytes,
            memory_peak_bytes=read.memory_peak_bytes,
            disk_bytes=box.disk_bytes,
            oom_kills=read.oom_kills,
        )

    async def _find(self, ref: BoxRef) -> LivingBox | None:
        """The box under watch, taken under it if it lives. None: it is dead and unwatched."""
        record = record_of_reference(ref)
        box = self._roster.get(ref.box_id)
        if box is not None:
            return box
        hold = await self._reach.hold(record)
        if hold is None:
            return None
        box = self._roster.get(ref.box_id)  # somebody else may have looked meanwhile
        if box is None:
            return self._roster.add(record, hold.pidfd)
        if hold.pidfd is not None:
            os.close(hold.pidfd)
        return box


def _refuse(spec: BoxSpec, capabilities: Capabilities) -> None:
    """Say what cannot be had here. Raises `not_supported`."""
    if spec.network.kind not in capabilities.networks:
        _not_supported(f"no network {spec.network.kind!r}{_mend(spec.network.kind)}")
    if spec.runtime and spec.runtime not in capabilities.runtimes:
        known = ", ".join(sorted(capabilities.runtimes))
        _not_supported(f"no runtime {spec.runtime!r} that sandboxes can have; it has {known}")
    if spec.resources.gpu and not capabilities.gpu:
        _not_supported("no GPU")


def _mend(network: str) -> str:
    if network != "none":
        return ""
    return (
        ": its guests are reached by TCP, so that every sandbox has one. Set `network = "
        '"internet"` in the template, or run the daemon beside its engine'
    )


def _not_supported(what: str) -> NoReturn:
    raise SandboxdError(ErrorCode.NOT_SUPPORTED, f"the container engine has {what}")
