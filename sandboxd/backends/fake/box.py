"""One box in memory: its guest, the lines to it, its life as a task of the backend's group."""

from __future__ import annotations

import anyio
from anyio.abc import ByteStream, TaskGroup, TaskStatus

from sandboxd.backends.fake.faults import Faults
from sandboxd.backends.fake.guest.agent import FakeGuest
from sandboxd.backends.fake.guest.programs import PROGRAMS
from sandboxd.backends.fake.guest.server import Reply, Request, serve
from sandboxd.backends.fake.guest.tree import FileTree
from sandboxd.backends.fake.pipes import stream_pair
from sandboxd.backends.fake.settings import FakeSettings
from sandboxd.backends.protocol import BoxOrder, Death


class FakeBox:
    """death: None while it lives."""

    def __init__(self, order: BoxOrder, settings: FakeSettings, faults: Faults) -> None:
        self.order = order
        self.death: Death | None = None
        self._settings = settings
        self._faults = faults
        self._scope = anyio.CancelScope()
        self._lines: set[anyio.CancelScope] = set()
        self._group: TaskGroup | None = None
        self._guest: FakeGuest | None = None

    async def live(self, *, task_status: TaskStatus[None]) -> int | None:
        """Be, until `end`, or until the guest's own limit: then with the guest's exit code."""
        files = FileTree(
            now=self._settings.clock.now, disk_bytes=self.order.spec.resources.disk_mb << 20
        )
        end = None
        with self._scope:
            async with anyio.create_task_group() as group:
                self._group = group
                self._guest = FakeGuest(
                    group,
                    files=files,
                    programs={**PROGRAMS, **self._settings.programs},
                    wall=self._settings.clock.now,
                    orphan_limit_s=self._settings.orphan_limit_s,
                )
                task_status.started()
                end = await self._guest.live()
                group.cancel_scope.cancel()
        return end

    def end(self, death: Death | None = None) -> None:
        """Stop everything in it, at once."""
        self.death = self.death or death
        self._scope.cancel()

    def connect(self) -> ByteStream:
        """A fresh line to the guest of a living box."""
        ours, theirs = stream_pair()
        if self._group is None:
            raise RuntimeError("the box does not live yet")
        self._group.start_soon(self._serve, theirs, name=f"line to {self.order.box_id}")
        return ours

    def drop_lines(self) -> None:
        """Cut every line; what was begun goes on."""
        for scope in list(self._lines):
            scope.cancel()

    async def _serve(self, stream: ByteStream) -> None:
        with anyio.CancelScope() as scope:
            self._lines.add(scope)
            try:
                await serve(stream, self._answer)
            finally:
                self._lines.discard(scope)

    async def _answer(self, request: Request) -> Reply:
        if self._guest is None:
            raise RuntimeError("the box does not live yet")
        if self._faults.slow_s:
            await anyio.sleep(self._faults.slow_s)
        return await self._guest.answer(request)
