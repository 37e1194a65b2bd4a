"""Faults by script, for any verb of a backend and for the store: what goes wrong, and how often."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import TypeVar

import anyio
from anyio.abc import ByteStream

from sandboxd.backends.fake import FakeBackend
from sandboxd.backends.protocol import BoxOrder, BoxRef, Capabilities, Death, OwnedBox, Readings
from sandboxd.errors import SandboxdError
from sandboxd.leases.store import MemoryStore
from sandboxd.model.lease import Lease
from sandboxd.model.run import Run, RunKey
from sandboxd.wire.codes import ErrorCode, Fault

T = TypeVar("T")
SLOW_S = 7.0


class Mishap(StrEnum):
    """What happens to one call."""

    FAIL = "fail"  # an error at once
    HANG = "hang"  # nothing, until it is given up
    LATE = "late"  # it is done, but no answer comes
    SLOW = "slow"  # it takes seconds
    VANISH = "vanish"  # the box is gone first
    DROP = "drop"  # it is done, and every line into every box breaks


class Sabotage:
    """A backend around the fake whose next calls meet what was scripted for their verb."""

    name = "fake"

    def __init__(self, inner: FakeBackend) -> None:
        self.inner = inner
        self.images = inner.images
        self.deeds = inner.deeds
        self.script: defaultdict[str, deque[Mishap]] = defaultdict(deque)

    def capabilities(self) -> Capabilities:
        """The fake's."""
        return self.inner.capabilities()

    async def make(self, order: BoxOrder) -> BoxRef:
        """Make."""
        return await self._meet("make", order.box_id, lambda: self.inner.make(order))

    async def dispose(self, ref: BoxRef) -> None:
        """Dispose."""
        await self._meet("dispose", ref.box_id, lambda: self.inner.dispose(ref))

    async def dispose_remains(self, box_id: str) -> None:
        """Dispose of remains."""
        await self._meet("dispose", box_id, lambda: self.inner.dispose_remains(box_id))

    async def look(self, ref: BoxRef) -> Death | None:
        """Look."""
        return await self._meet("look", ref.box_id, lambda: self.inner.look(ref))

    async def list_owned(self) -> list[OwnedBox]:
        """List."""
        return await self._meet("list_owned", "", self.inner.list_owned)

    async def connect(self, ref: BoxRef) -> ByteStream:
        """Connect: the first thing a claim does."""
        return await self._meet("connect", ref.box_id, lambda: self.inner.connect(ref))

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Death]]:
        """Watch."""
        return self.inner.watch()

    async def read(self, ref: BoxRef) -> Readings:
        """Read."""
        return await self._meet("read", ref.box_id, lambda: self.inner.read(ref))

    async def _meet(self, verb: str, box_id: str, act: Callable[[], Awaitable[T]]) -> T:
        mishap = self.script[verb].popleft() if self.script[verb] else None
        match mishap:
            case Mishap.FAIL:
                await anyio.lowlevel.checkpoint()
                raise SandboxdError(ErrorCode.BACKEND_UNAVAILABLE, f"{verb}: scripted")
            case Mishap.HANG:
                await anyio.sleep_forever()
            case Mishap.LATE:
                await act()
                await anyio.sleep_forever()
            case Mishap.SLOW:
                await anyio.sleep(SLOW_S)
            case Mishap.VANISH:
                self.vanish(box_id)
            case Mishap.DROP | None:
                pass
        done = await act()
        if mishap is Mishap.DROP:
            self.inner.drop_connections()
        return done

    def vanish(self, box_id: str) -> None:
        """The box is gone without a word, if it was there."""
        if box_id in self.inner._boxes:
            self.inner.vanish(box_id)


class BadStore(MemoryStore):
    """A store that is slow, or full: writes fail, as one that has no room left."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.slow_s = 0.0
        self.script: deque[Mishap] = deque()
        self._writer = anyio.Lock()  # one write after the other, as SQLite does it

    async def put(self, lease: Lease) -> None:
        """Write, if there is room. Like the real one it finishes what it began."""
        async with self._writer:
            await self._wait()
            await super().put(lease)

    async def put_all(self, leases: Iterable[Lease]) -> None:
        """Write all, if there is room."""
        async with self._writer:
            await self._wait()
            await super().put_all(leases)

    async def forget(self, ids: Iterable[str]) -> None:
        """Drop, if there is room."""
        async with self._writer:
            await self._wait()
            await super().forget(ids)

    async def put_run(self, run: Run) -> None:
        """Write, if there is room."""
        async with self._writer:
            await self._wait()
            await super().put_run(run)

    async def forget_runs(self, keys: Iterable[RunKey]) -> None:
        """Drop, if there is room."""
        async with self._writer:
            await self._wait()
            await super().forget_runs(keys)

    async def _wait(self) -> None:
        mishap = self.script.popleft() if self.script else None
        with anyio.CancelScope(shield=True):
            await anyio.sleep(SLOW_S if mishap is Mishap.SLOW else self.slow_s)
        if self.full or mishap is Mishap.FAIL:
            raise SandboxdError(
                ErrorCode.DISK_FULL, "no room left", fault=Fault.INFRA, mask=True, retry_safe=True
            )
