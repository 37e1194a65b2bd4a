"""Making one box, step by step: its directory, its container, its guest. Bounds how many start."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import anyio
from anyio import CapacityLimiter, to_thread

from sandboxd.backends.docker.creating import Body, ContainerPlan, container_body, container_name
from sandboxd.backends.docker.engine import Engine, EngineRefused
from sandboxd.backends.docker.imaging import DockerImages, ImageFacts
from sandboxd.backends.docker.labels import owned_by
from sandboxd.backends.docker.networks import Networks
from sandboxd.backends.docker.places import Places, conflict
from sandboxd.backends.docker.reaching.way import Reach
from sandboxd.backends.docker.records import BoxRecord, record_of_container
from sandboxd.backends.docker.refusals import start_refused
from sandboxd.backends.docker.removing import Remover
from sandboxd.backends.docker.watching.judging import Judge
from sandboxd.backends.parts.deaths import ended_early
from sandboxd.backends.parts.tcp_lines import EndedEarly
from sandboxd.backends.protocol import BoxOrder
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode, Fault

_CREATE_S = 10.0  # what a cancelled make still waits for the id of what it created
_CLEANUP_S = 20.0
_NAMES = 3
_CONFLICT = 409


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What all boxes of an installation stand on. seccomp: as in ContainerPlan.

    ready_timeout_s: from a box's first call to its guest's answer. orphan_s: as in ContainerPlan.
    """

    installation: str
    tag: str
    places: Places
    seccomp: str
    ready_timeout_s: float
    orphan_s: float


class Maker:
    """Makes boxes of one installation."""

    def __init__(
        self,
        engine: Engine,
        *,
        ground: Ground,
        reach: Reach,
        images: DockerImages,
        networks: Networks,
        remover: Remover,
        judge: Judge,
        starting: int,
    ) -> None:
        """starting: containers that start at once; more only make each of them slower."""
        self._engine = engine.lane(starting * 2)
        self._ground = ground
        self._reach = reach
        self._images = images
        self._networks = networks
        self._remover = remover
        self._judge = judge
        self._starting = anyio.Semaphore(starting)
        self._files = CapacityLimiter(2)

    async def make(self, order: BoxOrder) -> tuple[BoxRecord, int | None]:
        """Make a box and wait for its guest: its record, and a pidfd of its first process, where
        that is in sight.

        Raises as `Backend.make`. Failed or cancelled: what there is of it is removed, or found by
        its label or its directory.
        """
        spec = order.spec
        async with self._images.using(spec.image, pull=spec.pull) as image, self._starting:
            network = await self._networks.name_for(spec.network.kind, image=spec.image)
            await self._open_directory(order.box_id)
            container: list[str] = []
            try:
                with anyio.fail_after(self._ground.ready_timeout_s):
                    body = container_body(self._plan(order, image, network))
                    return await self._bring_up(order, body, container)
            except TimeoutError as error:
                await self._clean_up(order.box_id, container)
                raise _never_ready(spec.image, self._ground.ready_timeout_s) from error
            except BaseException:
                await self._clean_up(order.box_id, container)
                raise

    async def _open_directory(self, box_id: str) -> None:
        try:
            await to_thread.run_sync(self._ground.places.create, box_id, limiter=self._files)
        except OSError as error:
            raise _translate(error) from error

    def _plan(self, order: BoxOrder, image: ImageFacts, network: str) -> ContainerPlan:
        ground = self._ground
        return ContainerPlan(
            order=order,
            installation=ground.installation,
            image=image.image_id,
            user=image.user,
            env=image.env,
            door=self._reach.door(order.box_id),
            network=network,
            seccomp=ground.seccomp,
            orphan_s=ground.orphan_s,
        )

    async def _bring_up(
        self, order: BoxOrder, body: Body, container: list[str]
    ) -> tuple[BoxRecord, int | None]:
        """container: takes the id of what was created, as soon as it is known."""
        api = self._engine.api
        try:
            container_id = await self._create(order.box_id, body, container)
            await self._reach.furnish(order.box_id, container_id)
            await self._engine.call(api.start, container_id)
            facts: dict[str, Any] = await self._engine.call(api.inspect_container, container_id)
        except EngineRefused as refusal:
            raise start_refused(refusal, order.spec.image) from refusal
        where = await self._reach.where(facts)
        record = record_of_container(order.box_id, container_id, body["Labels"], where)
        try:
            return record, await self._meet_guest(record)
        except EndedEarly:
            raise ended_early(await self._judge.examine(record), order.spec.image) from None

    async def _meet_guest(self, record: BoxRecord) -> int | None:
        """Wait for it; the pidfd, as `make`. Raises as `Reach.wait_for_guest`."""
        hold = await self._reach.hold(record)
        if hold is None:
            raise EndedEarly
        try:
            await self._reach.wait_for_guest(record)
        except BaseException:
            if hold.pidfd is not None:
                os.close(hold.pidfd)
            raise
        return hold.pidfd

    async def _create(self, box_id: str, body: Body, container: list[str]) -> str:
        """Create the container; another's that has the name is left alone, for a new name.

        Even if cancelled it is waited for: whoever does not know the id would have to search.
        """
        name = container_name(self._ground.tag, box_id)
        for tries_left in reversed(range(_NAMES)):
            try:
                with anyio.CancelScope(shield=True), anyio.fail_after(_CREATE_S):
                    created = await self._engine.call(
                        self._engine.api.create_container_from_config, body, name
                    )
                    container.append(str(created["Id"]))
            except EngineRefused as refusal:
                if refusal.status != _CONFLICT or not tries_left:
                    raise
                if await self._exists(box_id):
                    raise conflict(box_id) from refusal
                name = f"{container_name(self._ground.tag, box_id)}-{secrets.token_hex(2)}"
            else:
                return container[0]
        raise AssertionError("unreachable")

    async def _exists(self, box_id: str) -> bool:
        found = await self._engine.call(
            self._engine.api.containers,
            all=True,
            filters=owned_by(self._ground.installation, box_id),
        )
        return bool(found)

    async def _clean_up(self, box_id: str, container: list[str]) -> None:
        with anyio.move_on_after(_CLEANUP_S, shield=True), suppress(SandboxdError):
            await self._remover.remove(box_id, container[0] if container else "")


def _never_ready(image: str, patience_s: float) -> SandboxdError:
    return SandboxdError(
        ErrorCode.START_FAILED,
        f"image {image!r}: the sandbox was not ready within {patience_s:g} s",
        details={"image": image},
    )


def _translate(error: OSError) -> SandboxdError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return SandboxdError(
            ErrorCode.DISK_FULL,
            f"the run directory's disk is full: {error}",
            fault=Fault.INFRA,
            mask=True,
        )
    return SandboxdError(ErrorCode.START_FAILED, f"its directory could not be made: {error}")
