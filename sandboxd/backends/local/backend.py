"""The local backend, put together. Each part does its own; this file only says in what order."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import NoReturn

import anyio
from anyio import to_thread
from anyio.abc import ByteStream

from sandboxd.backends.local.boxes import BoxRecord, BoxShelf
from sandboxd.backends.local.launching.making import Attempt, Maker
from sandboxd.backends.local.launching.roots import Roots
from sandboxd.backends.local.living import LivingBox, Roster
from sandboxd.backends.local.removing import Remover
from sandboxd.backends.local.roots_seen import RootsSeen
from sandboxd.backends.parts.deaths import lost
from sandboxd.backends.parts.reaching import reach
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
from sandboxd.linux.cgroups import Cgroups
from sandboxd.linux.processes import ProcessMark, has_ended, open_pidfd
from sandboxd.model.template import BoxSpec
from sandboxd.wire.codes import ErrorCode

NAME = "local"
_CLEANUP_S = 20.0


class LocalBackend:
    """Boxes on this machine. Made by `open_local` alone."""

    name = NAME

    def __init__(
        self,
        *,
        maker: Maker,
        shelf: BoxShelf,
        cgroups: Cgroups,
        roster: Roster,
        roots: Roots,
        capabilities: Capabilities,
        starting: int,
        ready_timeout_s: float,
    ) -> None:
        self._shelf = shelf
        self._roster = roster
        self._roots = roots
        self._seen = RootsSeen(roots, living=lambda: {box.box_id for box in roster.living()})
        self.images: Images | None = self._seen
        self.deeds: Deeds | None = None
        self._capabilities = capabilities
        self._ready_timeout_s = ready_timeout_s
        self._maker = maker
        self._remover = Remover(roster, shelf, cgroups)
        self._starting = anyio.Semaphore(starting)

    def capabilities(self) -> Capabilities:
        """As probed when it was opened."""
        return self._capabilities

    async def make(self, order: BoxOrder) -> BoxRef:
        """Make a box; see the protocol."""
        _refuse(order.spec)
        root = await self._roots.find(order.spec.image)
        async with self._starting:
            attempt = Attempt()
            try:
                with anyio.fail_after(self._ready_timeout_s):
                    record, pidfd = await self._maker.make(order, root, attempt)
            except BaseException as error:
                if not _is_conflict(error):
                    await self._clean_up(order.box_id, attempt)
                if isinstance(error, TimeoutError):
                    raise _never_ready(self._ready_timeout_s) from error
                raise
            self._roster.add(record, pidfd, attempt.outer)
            self._seen.made(order.box_id, order.spec.image)
        return self._ref(record)

    async def _clean_up(self, box_id: str, attempt: Attempt) -> None:
        with anyio.move_on_after(_CLEANUP_S, shield=True), suppress(SandboxdError):
            await self._remover.remove_remains(box_id, attempt.outer)

    async def dispose(self, ref: BoxRef) -> None:
        """Remove a box; see the protocol."""
        box = await self._find(ref)
        if box is None:
            await self._remover.remove_remains(ref.box_id)
        else:
            await self._remover.remove(box)

    async def dispose_remains(self, box_id: str) -> None:
        """Remove what is left of a make; see the protocol."""
        box = self._roster.get(box_id)
        if box is None:
            await self._remover.remove_remains(box_id)
        else:
            await self._remover.remove(box)

    async def look(self, ref: BoxRef) -> Death | None:
        """Whether it lives; adopts a box that another daemon made."""
        box = await self._find(ref)
        if box is None:
            record = await to_thread.run_sync(self._record, ref)
            return await self._roster.examine(record)
        if not box.gone.is_set() and not has_ended(box.pidfd):
            return None
        return await self._roster.death_of(box)

    async def list_owned(self) -> list[OwnedBox]:
        """Every box on the shelf; see the protocol."""
        return await to_thread.run_sync(
            lambda: [self._owned(box_id) for box_id in self._shelf.list_ids()]
        )

    async def connect(self, ref: BoxRef) -> ByteStream:
        """A stream to the guest; see the protocol."""
        box = await self._find(ref)
        if box is None or box.gone.is_set():
            raise lost(box.death if box else await self.look(ref))
        socket = self._shelf.places(ref.box_id).socket
        return await reach(box, socket, guest_pid=box.pid, end=partial(_end, box))

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Death]]:
        """Deaths from now on; see the protocol."""
        return self._roster.watch()

    async def read(self, ref: BoxRef) -> Readings:
        """What the control groups and the last round of the disk watch say."""
        box = await self._find(ref)
        return Readings() if box is None else await self._roster.read(box)

    async def _find(self, ref: BoxRef) -> LivingBox | None:
        """The box under watch, taken under it if it lives. None: it is dead and unwatched."""
        if box := self._roster.get(ref.box_id):
            return box
        record = await to_thread.run_sync(self._record, ref)
        # Another task may have adopted it meanwhile.
        return self._roster.get(ref.box_id) or self._roster.adopt(record)

    def _record(self, ref: BoxRef) -> BoxRecord:
        """What was written down of the box, else what its reference says. Blocking."""
        record = self._shelf.read(ref.box_id)
        if record is not None and record.process is not None:
            return record
        return BoxRecord(
            box_id=ref.box_id,
            labels={},
            disk_limit_bytes=1 << 62,
            memory_limit_bytes=0,
            process=ProcessMark.from_facts(ref.details),
        )

    def _ref(self, record: BoxRecord) -> BoxRef:
        mark = record.process
        assert mark is not None
        places = self._shelf.places(record.box_id)
        return BoxRef(
            backend=NAME,
            box_id=record.box_id,
            details={
                **mark.facts(),
                "socket": str(places.socket),
                "shared": str(places.shared),
            },
        )

    def _owned(self, box_id: str) -> OwnedBox:
        record = self._shelf.read(box_id)
        if record is None or record.process is None:
            labels = record.labels if record else {}
            return OwnedBox(box_id=box_id, labels=labels, ref=None, alive=False)
        return OwnedBox(
            box_id=box_id,
            labels=record.labels,
            ref=self._ref(record),
            alive=_is_alive(record.process),
        )


async def _end(box: LivingBox, verdict: Death) -> None:
    box.end(verdict)
    await box.gone.wait()


def _refuse(spec: BoxSpec) -> None:
    """Say what cannot be had here. Raises `not_supported`."""
    if spec.network.kind != "none":
        _not_supported(f"network {spec.network.kind!r}")
    if spec.runtime:
        _not_supported(f"runtime {spec.runtime!r}")
    if spec.resources.gpu:
        _not_supported("gpu")


def _not_supported(what: str) -> NoReturn:
    raise SandboxdError(ErrorCode.NOT_SUPPORTED, f"the local backend has no {what}")


def _never_ready(patience_s: float) -> SandboxdError:
    return SandboxdError(
        ErrorCode.START_FAILED, f"the sandbox was not ready within {patience_s:g} s"
    )


def _is_conflict(error: BaseException) -> bool:
    return isinstance(error, SandboxdError) and error.code is ErrorCode.CONFLICT


def _is_alive(mark: ProcessMark) -> bool:
    pidfd = open_pidfd(mark)
    if pidfd is None:
        return False
    try:
        return not has_ended(pidfd)
    finally:
        os.close(pidfd)
