"""The rooms behind the doors, opened on the fake backend: what lease tests stand in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from sandboxd.backends.fake import FakeBackend, FakeSettings, open_fake
from sandboxd.leases.store import LeaseStore, MemoryStore
from sandboxd.leases.tenancy import Tenancy
from sandboxd.leases.terms import LeaseWish, resolve
from sandboxd.model.command import Command
from sandboxd.model.ids import new_id
from sandboxd.model.lease import Lease
from sandboxd.model.template import BoxSpec, PoolSettings, Template
from sandboxd.rooms import Foundation, Rooms, open_rooms
from sandboxd.telemetry.metrics import Metrics

OWNER = "tests"


class LoopClock:
    """Wall time that follows the loop's clock, so that virtual hours pass here too.

    offset: Unix seconds at the loop's zero; move it to set the clock back or forth.
    """

    def __init__(self) -> None:
        self.offset = 1_800_000_000.0

    def now(self) -> float:
        """Unix seconds."""
        return self.offset + anyio.current_time()


@dataclass
class Front:
    """One daemon's rooms, and a caller's shortest way through them."""

    rooms: Rooms
    backend: FakeBackend
    store: LeaseStore
    clock: LoopClock
    templates: Mapping[str, Template]

    async def lease(self, **wish: Any) -> Lease:
        """Lease by the fields of a wish."""
        order = resolve(LeaseWish(**{"template": "python", **wish}), self.templates)
        lease, _ = await self.rooms.desk.granting.lease(order, owner=OWNER)
        return lease

    async def group(
        self, count: int, *, group_id: str | None = None, kept: bool | None = None, **wish: Any
    ) -> list[Lease]:
        """Lease a group by the fields of a wish; kept where it is named, unless that is said."""
        named = {"template": "python", "group_id": group_id or new_id("grp"), **wish}
        order = resolve(LeaseWish(**named), self.templates)
        tenancies, _ = await self.rooms.desk.granting.groups.lease(
            order,
            owner=OWNER,
            rollout_ids=[None] * count,
            kept=group_id is not None if kept is None else kept,
        )
        return [tenancy.shown() for tenancy in tenancies]

    async def run(self, lease: Lease, *argv: str, **fields: Any) -> Any:
        """Run a command to its end."""
        command = Command(exec_id=fields.pop("exec_id", new_id("exe")), argv=argv, **fields)
        return await self.rooms.commands.run(lease.id, command, owner=OWNER, wait_s=None)

    async def start(self, lease: Lease, *argv: str) -> Any:
        """Start a command and leave it."""
        command = Command(exec_id=new_id("exe"), argv=argv)
        return await self.rooms.commands.start(lease.id, command, owner=OWNER)

    def tenancy(self, lease: Lease) -> Tenancy:
        """The desk's own view of a lease."""
        return self.rooms.desk.find(lease.id, owner=OWNER)

    def now(self, lease: Lease) -> Lease:
        """The lease as it is now."""
        return self.tenancy(lease).shown()

    async def full(self, pool: str = "python") -> None:
        """Wait until the pool's stock is what it should be."""
        warm_pool = self.rooms.house.pools[pool]
        with anyio.fail_after(60):
            # The pool has no event for it.
            while warm_pool.status().ready < warm_pool.settings.ready:  # noqa: ASYNC110
                await anyio.sleep(0.01)

    async def box_ids(self) -> set[str]:
        """Every box that exists."""
        return {box.box_id for box in await self.backend.list_owned()}


def template(name: str = "python", **fields: Any) -> Template:
    """A template on the fake. Pool settings may be given flat: `ready=`, `max=`, …"""
    pool = {key: fields.pop(key) for key in ("ready", "max", "starting", "queue") if key in fields}
    spec = fields.pop("spec", BoxSpec(image="host"))
    return Template(name=name, spec=spec, pool=PoolSettings(**pool), **fields)


@dataclass
class World:
    """What outlives a daemon: the backend's boxes, the store, the time."""

    backend: FakeBackend
    store: LeaseStore = field(default_factory=MemoryStore)
    clock: LoopClock = field(default_factory=LoopClock)
    metrics: Metrics = field(default_factory=Metrics)

    @asynccontextmanager
    async def daemon(
        self, *templates: Template, most: int = 1000, slots: int = 0
    ) -> AsyncIterator[Front]:
        """One daemon's life; leaving it is a crash: no lease is ended, no box removed."""
        named = {t.name: t for t in templates or (template(),)}
        foundation = Foundation(
            backend=self.backend,
            store=self.store,
            clock=self.clock,
            metrics=self.metrics,
            installation="tests",
            most=most,
            slots=slots,
        )
        async with open_rooms(foundation, named) as rooms:
            yield Front(rooms, self.backend, self.store, self.clock, named)


@asynccontextmanager
async def open_world(**settings: Any) -> AsyncIterator[World]:
    """A world without a daemon yet."""
    async with open_fake(FakeSettings(**settings)) as backend:
        yield World(backend)
