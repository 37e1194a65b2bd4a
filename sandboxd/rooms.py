"""Puts the rooms behind the doors together, for a daemon or for a test: pools, desk, execution.

It is given a backend and a store, and names no concrete one.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio
from anyio.abc import TaskGroup

from sandboxd.backends.protocol import Backend, Wanted
from sandboxd.clock import Clock
from sandboxd.egress.lent import Lender
from sandboxd.egress.outside import Outside
from sandboxd.execution.commands import Commands
from sandboxd.execution.files import Files
from sandboxd.execution.ports import Ports
from sandboxd.execution.shells import Shells
from sandboxd.kernels.early.warming_up import WarmingUp
from sandboxd.kernels.kernels import Kernels
from sandboxd.leases.adoption import Adoption
from sandboxd.leases.back_office import BackOffice
from sandboxd.leases.desk import Desk
from sandboxd.leases.endings import Endings
from sandboxd.leases.granting import Granting
from sandboxd.leases.quotas import Quotas
from sandboxd.leases.reaper import Reaper
from sandboxd.leases.runs import Runs
from sandboxd.leases.slots import Slots
from sandboxd.leases.store import LeaseStore
from sandboxd.leases.tenancy import Tenancy
from sandboxd.leases.terms import LeaseOrder, LeaseWish, resolve
from sandboxd.leases.ways_out import WayOutSettings, WaysOut
from sandboxd.mcp.early import EarlyServers
from sandboxd.mcp.servers import McpServers
from sandboxd.model.lease import LeaseState
from sandboxd.model.mcp_server import SharedMcpServer
from sandboxd.model.quota import Quota
from sandboxd.model.template import Template
from sandboxd.pool.disposer import Disposer
from sandboxd.pool.house import House
from sandboxd.pool.prefetcher import Prefetcher
from sandboxd.pool.sweeper import Sweeper
from sandboxd.pool.warm_pool import WarmPool
from sandboxd.pool.workshop import Equipment
from sandboxd.telemetry.events import Events, EventType
from sandboxd.telemetry.metrics import Metrics
from sandboxd.wire.codes import EndReason

_SWEEP_S = 60.0
_HANG_UP_S = 2.0


@dataclass(slots=True, kw_only=True)
class Foundation:
    """What the rooms stand on.

    installation: marks every box that is ours. most: boxes in all. outside: what ways out lead to.
    quotas: by the names that own leases. mcp_servers: that leases share. slots: processors that
    leases are spread over; 0: they are not.
    """

    backend: Backend
    store: LeaseStore
    clock: Clock
    metrics: Metrics
    installation: str
    most: int
    outside: Outside = field(default_factory=Outside)
    way_out: WayOutSettings = field(default_factory=WayOutSettings)
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    mcp_servers: Mapping[str, SharedMcpServer] = field(default_factory=dict)
    slots: int = 0


class Rooms:
    """Everything behind the doors, running."""

    def __init__(
        self, foundation: Foundation, tasks: TaskGroup, *, expects_mcp: bool = False
    ) -> None:
        """expects_mcp: there are MCP servers in the configuration."""
        self._foundation = foundation
        self._tasks = tasks
        self.events = Events(foundation.clock, epoch=secrets.token_hex(4))
        self.disposer = Disposer(foundation.backend)
        self.house = House(most=foundation.most)
        self.disposer.when_gone(self.house.gone)
        self.sweeper = Sweeper(
            backend=foundation.backend,
            house=self.house,
            disposer=self.disposer,
            metrics=foundation.metrics,
        )
        office = BackOffice(
            backend=foundation.backend,
            store=foundation.store,
            house=self.house,
            clock=foundation.clock,
            metrics=foundation.metrics,
            events=self.events,
            slots=Slots(foundation.slots),
        )
        self.quotas = Quotas(office.book, foundation.quotas)
        office.gates.append(self.quotas)
        endings = Endings(office)
        limits = foundation.backend.capabilities().limits_on_commands
        self.ways_out = WaysOut(office, outside=foundation.outside, settings=foundation.way_out)
        granting = Granting(office, endings, ways_out=self.ways_out, limits_on_commands=limits)
        self._warming_up = WarmingUp(limits=limits, slots=office.slots)
        self._early_servers = EarlyServers(limits=limits, slots=office.slots)
        self.desk = Desk(office, granting=granting, endings=endings, ways_out=self.ways_out)
        self.runs = Runs(office, granting=granting, endings=endings)
        office.gates.insert(0, self.runs)  # before what a request costs is counted
        self.commands = Commands(self.desk, foundation.metrics)
        self.shells = Shells(self.desk)
        self.files = Files(self.desk)
        self.ports = Ports(self.desk)
        self.mcp = McpServers(
            self.desk,
            metrics=foundation.metrics,
            shared=foundation.mcp_servers,
            order=self._order_of_shared,
            expected=expects_mcp,
        )
        self.kernels = Kernels(self.desk, clock=foundation.clock, metrics=foundation.metrics)
        self.prefetcher = Prefetcher(foundation.backend.images, tasks)
        if foundation.backend.images is not None:
            foundation.backend.images.wanted_by(self._wanted_images)
            foundation.backend.images.when_pulled(
                lambda image: self.events.tell(EventType.IMAGE_PULLED, image=image)
            )

    def open_pool(self, template: Template) -> WarmPool:
        """A pool whose loop does not run yet."""
        foundation = self._foundation
        return WarmPool(
            template,
            backend=foundation.backend,
            disposer=self.disposer,
            house=self.house,
            labels={"installation": foundation.installation},
            metrics=foundation.metrics,
            events=self.events,
            equipment=Equipment(
                Lender(
                    foundation.outside, limits=foundation.way_out.limits, metrics=foundation.metrics
                ),
                self._warming_up,
                self._early_servers,
            ),
        )

    def _order_of_shared(self, shared: SharedMcpServer) -> LeaseOrder:
        """A sandbox for a server that leases share: until it is given back, or as long as its
        template allows.
        """
        templates = {name: pool.template for name, pool in self.house.pools.items()}
        order = resolve(
            LeaseWish(template=shared.template, mcp_servers=(), timeout_s=-1, idle_timeout_s=0),
            templates,
            direct=self._foundation.backend.capabilities().direct_networks,
        )
        return replace(order, terms=replace(order.terms, mcp_servers=(shared.server,)))

    async def take(self, templates: Mapping[str, Template]) -> None:
        """Take the templates of a configuration that was read again. Leases live on."""
        for name, template in templates.items():
            if name in self.house.pools:
                self.house.pools[name].change(template)
            else:
                pool = self.open_pool(template)
                await self._tasks.start(pool.run, name=f"pool-{name}")
        for name, pool in list(self.house.pools.items()):
            if name not in templates:
                pool.retire()

    async def clear(self, *, reopen: bool = False) -> int:
        """End every lease and remove every box; returns how many are left after a minute.

        Whoever waits meanwhile, or comes, is answered `shutting_down`. reopen: let the pools fill
        up again afterwards, and leases be granted.
        """
        granting = self.desk.granting
        was_closing = granting.closing
        granting.close()
        standing = [pool for pool in self.house.pools.values() if not pool.retired]
        for pool in standing:
            pool.retire()
        for tenancy in self.desk.book:
            self._end(tenancy)
        with anyio.move_on_after(_SWEEP_S):
            # What an earlier daemon left is nobody's stock, and on its way out all the same.
            while self.house.exists or self.disposer.pending:
                await self.disposer.next_gone()
        left = max(self.house.exists, self.disposer.pending)
        if reopen:
            granting.closing = was_closing
            for pool in standing:
                pool.reopen()
        return left

    def _wanted_images(self) -> Mapping[str, Wanted]:
        wanted: dict[str, Wanted] = {}
        for pool in self.house.pools.values():
            spec, stocked = pool.template.spec, pool.settings.ready > 0
            if not pool.retired:
                known = wanted.get(spec.image, Wanted())
                pods = {spec.pod} if spec.pull != "never" else set()
                wanted[spec.image] = Wanted(
                    stocked=known.stocked or stocked, pods=known.pods | pods
                )
        return wanted

    def _end(self, tenancy: Tenancy) -> None:
        """Whoever waits was answered by `close`; one that is being claimed is ended right after."""
        if tenancy.lease.state is not LeaseState.QUEUED:
            self.desk.endings.end(tenancy, EndReason.SHUTDOWN, detail="all was to go")
        elif tenancy.ticket is None or tenancy.ticket.box is not None:
            self.desk.granting.abandon(tenancy, EndReason.SHUTDOWN)


@asynccontextmanager
async def open_rooms(
    foundation: Foundation, templates: Mapping[str, Template]
) -> AsyncIterator[Rooms]:
    """Open the rooms from the ground up: who holds what is settled before anything is leased.

    Raises what the store and the backend raise while the last daemon's leases are adopted. Leaving
    ends no lease: what lives is adopted at the next start.
    """
    async with anyio.create_task_group() as tasks:
        servers = any(template.mcp_servers for template in templates.values())
        rooms = Rooms(foundation, tasks, expects_mcp=servers or bool(foundation.mcp_servers))
        for template in templates.values():
            rooms.open_pool(template)
        await tasks.start(rooms.disposer.run, name="disposer")
        await tasks.start(rooms.desk.run, name="desk")
        await tasks.start(rooms.kernels.run, name="kernels")
        await tasks.start(rooms.mcp.run, name="mcp")
        adoption = Adoption(
            desk=rooms.desk,
            house=rooms.house,
            store=foundation.store,
            backend=foundation.backend,
            disposer=rooms.disposer,
            clock=foundation.clock,
            metrics=foundation.metrics,
            open_pool=rooms.open_pool,
        )
        await rooms.runs.load()
        await adoption.run()
        await rooms.mcp.adopt()
        rooms.runs.start_clocks()  # at once: nobody may be answered from a lease of a lost run
        for pool in list(rooms.house.pools.values()):
            await tasks.start(pool.run, name=f"pool-{pool.template.name}")
        await tasks.start(rooms.sweeper.run, name="sweeper")
        reaper = Reaper(rooms.desk, runs=rooms.runs, events=rooms.events, clock=foundation.clock)
        await tasks.start(reaper.run, name="reaper")
        try:
            yield rooms
        finally:
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True), anyio.move_on_after(_HANG_UP_S):
                for pool in rooms.house.pools.values():
                    await pool.hang_up()
