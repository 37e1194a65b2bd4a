"""The MCP servers of all leases: found, started, listed. What doors call."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup, TaskStatus

from sandboxd.errors import SandboxdError
from sandboxd.execution.reattach import START_S, ask
from sandboxd.leases.desk import Desk
from sandboxd.leases.seen_servers import facts_of
from sandboxd.leases.tenancy import Tenancy
from sandboxd.leases.terms import LeaseOrder
from sandboxd.mcp.callers import numbers
from sandboxd.mcp.hidden import Veil, veil_of
from sandboxd.mcp.live import LiveServer, Past
from sandboxd.mcp.shared import OWNER, SharedServer
from sandboxd.mcp.target import OneServer, Target
from sandboxd.mcp.veiled import Veiled
from sandboxd.model.command import ExecRecord
from sandboxd.model.mcp_server import McpServer, McpStatus, SharedMcpServer, by_name
from sandboxd.telemetry.metrics import Metrics
from sandboxd.turns import Turns
from sandboxd.wire.codes import EndReason, ErrorCode, Outcome

if TYPE_CHECKING:
    from sandboxd.mcp.clients.bridge import Bridge

log = structlog.get_logger(__name__)

_ADOPT_S = 10.0  # for a sandbox of an earlier daemon's to answer


class McpServers:
    """Every call raises as those of `Commands` do, and `not_found` for an unknown server."""

    def __init__(
        self,
        desk: Desk,
        *,
        metrics: Metrics,
        shared: Mapping[str, SharedMcpServer],
        order: Callable[[SharedMcpServer], LeaseOrder],
        expected: bool = False,
    ) -> None:
        """shared: those of the configuration. order: what a sandbox of one of them is leased by.
        expected: some are configured, so that the first of them need not wait for us.
        """
        self.shared = {
            name: SharedServer(server, lease=self._lease, find=self.find, release=self._give_back)
            for name, server in shared.items()
        }
        self._order = order
        self._expected = expected
        self._desk = desk
        self._metrics = metrics
        self._ids: Iterator[int] = numbers()
        self._of: dict[str, dict[str, LiveServer]] = {}  # by lease
        self._looking = Turns()
        self._bridges: dict[tuple[str, str], Bridge] = {}  # by lease, if any, and name
        self._veils: dict[tuple[str, str], Veil | None] = {}  # of leases, by name
        self._tasks: TaskGroup | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Own the servers' tasks until cancelled; the servers live on."""
        try:
            async with anyio.create_task_group() as self._tasks:
                task_status.started()
                for name, shared in self.shared.items():
                    self._tasks.start_soon(shared.run, name=f"mcp-shared-{name}")
                if self._expected:
                    await load_bridges()
                await anyio.sleep_forever()
        finally:
            self._tasks = None

    # Sandboxes of shared servers.

    async def adopt(self) -> None:
        """Those that an earlier daemon leased; they go back where nobody shares them any more."""
        async with anyio.create_task_group() as tasks:
            for tenancy in list(self._desk.book):
                if tenancy.lease.owner.startswith(OWNER) and not tenancy.lease.over:
                    tasks.start_soon(self._adopt, tenancy, name=f"mcp-adopt-{tenancy.lease.id}")

    async def _adopt(self, tenancy: Tenancy) -> None:
        shared = self.shared.get(tenancy.lease.owner.removeprefix(OWNER))
        servers = tenancy.lease.terms.mcp_servers
        if tenancy.settled.is_set() and shared and servers == (shared.shared.server,):
            with suppress(SandboxdError), anyio.move_on_after(_ADOPT_S):
                await shared.adopt(tenancy)
                return
        if not tenancy.lease.over:
            self._desk.endings.end(tenancy, EndReason.RELEASED)

    async def _lease(self, shared: SharedMcpServer) -> Tenancy:
        owner = OWNER + shared.server.name
        lease, _ = await self._desk.granting.lease(self._order(shared), owner=owner)
        return self._desk.find(lease.id, owner=owner)

    async def _give_back(self, tenancy: Tenancy) -> object:
        return await self._desk.release(tenancy.lease.id, owner=tenancy.lease.owner)

    # Servers of leases.

    def declared(self, tenancy: Tenancy, name: str) -> McpServer:
        """What a lease calls so."""
        server = by_name(tenancy.lease.terms.mcp_servers).get(name)
        if server is None:
            there_are = ", ".join(by_name(tenancy.lease.terms.mcp_servers)) or "none"
            raise SandboxdError(
                ErrorCode.NOT_FOUND,
                f"the sandbox has no MCP server {name!r}; it has: {there_are}",
                sandbox_id=tenancy.lease.id,
            )
        return server

    async def find(self, tenancy: Tenancy, name: str) -> LiveServer:
        """A server of the lease's own."""
        server = self.declared(tenancy, name)
        return (await self.open(tenancy))[server.name]

    async def bridge(self, tenancy: Tenancy, name: str) -> Bridge:
        """Between a lease's clients and a server that speaks stdio."""
        shared = self.declared(tenancy, name).scope == "shared"
        target: Target = (
            self.shared_of(name) if shared else OneServer(await self.find(tenancy, name))
        )
        if (veil := self.veil(tenancy, name)) is not None:
            target = Veiled(target, veil)
        bridge = await self._bridge((tenancy.lease.id, name), target)
        if tenancy.lease.over:
            self._burn((tenancy.lease.id, name))
            raise tenancy.over_error()
        return bridge

    async def shared_bridge(self, name: str) -> Bridge:
        """Between a shared server that speaks stdio and clients that have no lease."""
        return await self._bridge(("", name), self.shared_of(name))

    def veil(self, tenancy: Tenancy, name: str) -> Veil | None:
        """What is hidden of a server from a lease's clients; None for nothing. Raises
        `bad_request` for what the lease has nothing for.
        """
        server = self.declared(tenancy, name)
        if server.scope == "shared":
            server = self.shared_of(name).shared.server
        key = (tenancy.lease.id, name)
        if key not in self._veils and server.hidden and not tenancy.lease.over:
            facts = facts_of(tenancy.lease.terms, sandbox_id=tenancy.lease.id)
            self._veils[key] = veil_of(server, facts)
        return self._veils.get(key)

    async def own_bridge(self, target: Target) -> Bridge:
        """Between the daemon's own server and the clients of one key; the caller keeps it."""
        made = await load_bridges()
        assert self._tasks is not None
        return made(target, tasks=self._tasks)

    def shared_of(self, name: str) -> SharedServer:
        """A shared server. Raises `not_found`."""
        if name not in self.shared:
            there_are = ", ".join(self.shared) or "none"
            raise SandboxdError(
                ErrorCode.NOT_FOUND,
                f"there is no shared MCP server {name!r}; there are: {there_are}",
            )
        return self.shared[name]

    async def _bridge(self, key: tuple[str, str], target: Target) -> Bridge:
        if key not in self._bridges:
            made = await load_bridges()
            assert self._tasks is not None
            self._bridges.setdefault(key, made(target, tasks=self._tasks))
        return self._bridges[key]

    def _burn(self, key: tuple[str, str]) -> None:
        if (bridge := self._bridges.pop(key, None)) is not None:
            bridge.end()

    async def list(self, tenancy: Tenancy) -> list[McpStatus]:
        """In the order of their declaration."""
        own = await self.open(tenancy)
        shown = []
        for server in tenancy.lease.terms.mcp_servers:
            bridge = self._bridges.get((tenancy.lease.id, server.name))
            sessions = 0 if bridge is None else bridge.sessions
            if server.name in own:
                shown.append(own[server.name].status(sessions=sessions))
            elif (shared := self.shared.get(server.name)) is not None:
                shown.append(replace(shared.status(), sessions=sessions))
        return shown

    def expect(self, tenancy: Tenancy) -> None:
        """A lease has begun: servers that run in it already are listened to before they are called.
        Whoever calls them first hears what goes wrong.
        """
        if tenancy.lease.terms.spec.mcp_servers and self._tasks is not None:
            self._tasks.start_soon(self._open_early, tenancy, name=f"mcp-open-{tenancy.lease.id}")

    async def _open_early(self, tenancy: Tenancy) -> None:
        with suppress(SandboxdError):
            await self.open(tenancy)

    async def open(self, tenancy: Tenancy) -> Mapping[str, LiveServer]:
        """The servers of the lease's own; the first time, with what its guest knows of them."""
        lease_id = tenancy.lease.id
        if lease_id in self._of:
            return self._of[lease_id]
        async with self._looking.alone(lease_id):
            if lease_id not in self._of:
                past = await self._past(tenancy)
                servers = {
                    server.name: self._open(tenancy, server, past.get(server.name))
                    for server in tenancy.lease.terms.mcp_servers
                    if server.scope == "rollout"
                }
                assert self._tasks is not None
                self._of[lease_id] = servers
                self._tasks.start_soon(self._forget, tenancy, name=f"mcp-of-{lease_id}")
                for server in servers.values():
                    name = f"mcp-{lease_id}-{server.server.name}"
                    self._tasks.start_soon(self._keep, server, name=name)
        return self._of[lease_id]

    async def _past(self, tenancy: Tenancy) -> dict[str, Past]:
        try:
            with anyio.fail_after(START_S):
                records = await ask(self._desk, tenancy, lambda guest: guest.list_execs())
        except TimeoutError:
            raise SandboxdError(ErrorCode.TIMEOUT, "the guest did not answer") from None
        found: dict[str, Past] = {}
        for record in reversed(records):  # oldest first
            name, generation = _read_exec_id(record)
            if name:
                unused = record.outcome is Outcome.KILLED and generation == 0
                first = found[name].first if name in found else generation + unused
                found[name] = Past(first, generation, record)
        return found

    def _open(self, tenancy: Tenancy, server: McpServer, past: Past | None) -> LiveServer:
        early = by_name(tenancy.lease.terms.spec.mcp_servers).get(server.name)
        if past is not None and past.last == 0:
            past = past if early == server else None
        return LiveServer(
            server,
            tenancy=tenancy,
            desk=self._desk,
            ids=self._ids,
            metrics=self._metrics,
            label=label_of(tenancy, server.name),
            past=past if server.command else None,
        )

    async def _keep(self, server: LiveServer) -> None:
        """Until it is dead or its lease is over."""
        tenancy = server.tenancy
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(tenancy.end_with, tasks.cancel_scope)
                try:
                    await server.run()
                except SandboxdError as error:
                    server.end(error)
                tasks.cancel_scope.cancel()
        except Exception:  # what one server brings about ends no other, nor the daemon
            log.exception("mcp.broken", sandbox_id=tenancy.lease.id, server=server.server.name)
            server.end(SandboxdError(ErrorCode.INTERNAL, "the bridge to the MCP server broke"))

    async def _forget(self, tenancy: Tenancy) -> None:
        await tenancy.recorded.wait()
        for server in self._of.pop(tenancy.lease.id, {}).values():
            server.end(tenancy.over_error())
        for declared in tenancy.lease.terms.mcp_servers:
            self._burn((tenancy.lease.id, declared.name))
            self._veils.pop((tenancy.lease.id, declared.name), None)


async def load_bridges() -> type[Bridge]:
    """What speaks with clients. The first time it takes most of a second, beside the loop."""
    module = await to_thread.run_sync(import_module, "sandboxd.mcp.clients.bridge")
    made: type[Bridge] = module.Bridge
    return made


def label_of(tenancy: Tenancy, name: str) -> str:
    """What metrics call a server: those of leases alone have one name together."""
    configured: Container[str] = by_name(tenancy.pool.template.mcp_servers)
    if tenancy.lease.owner.startswith(OWNER):
        return name
    return name if name in configured else "other"


def _read_exec_id(record: ExecRecord) -> tuple[str, int]:
    """Whose generation a command is; no name for any other command."""
    kind, _, rest = record.exec_id.partition(":")
    name, _, digits = rest.rpartition(":")
    return (name, int(digits)) if kind == "mcp" and digits.isdecimal() else ("", 0)
