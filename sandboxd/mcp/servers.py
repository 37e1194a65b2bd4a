"""The MCP servers of all leases: found, started, listed. What doors call."""

from __future__ import annotations

from collections.abc import Container, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup, TaskStatus

from sandboxd.errors import SandboxdError
from sandboxd.execution.reattach import START_S, ask
from sandboxd.leases.desk import Desk
from sandboxd.leases.tenancy import Tenancy
from sandboxd.mcp.callers import numbers
from sandboxd.mcp.live import LiveServer, Past
from sandboxd.mcp.shared import SharedServers
from sandboxd.mcp.target import OneServer
from sandboxd.model.command import ExecRecord
from sandboxd.model.mcp_server import McpServer, McpStatus, by_name
from sandboxd.telemetry.metrics import Metrics
from sandboxd.wire.codes import ErrorCode, Outcome

if TYPE_CHECKING:
    from sandboxd.mcp.bridge import Bridge

log = structlog.get_logger(__name__)


class McpServers:
    """Every call raises as those of `Commands` do, and `not_found` for an unknown server."""

    def __init__(
        self, desk: Desk, *, metrics: Metrics, shared: SharedServers, expected: bool = False
    ) -> None:
        """expected: some are configured, so that the first of them need not wait for us."""
        self.shared = shared
        self._expected = expected
        self._desk = desk
        self._metrics = metrics
        self._ids: Iterator[int] = numbers()
        self._of: dict[str, dict[str, LiveServer]] = {}  # by lease
        self._looking: dict[str, anyio.Lock] = {}
        self._bridges: dict[LiveServer, Bridge] = {}
        self._tasks: TaskGroup | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Own the servers' tasks until cancelled; the servers live on."""
        try:
            async with anyio.create_task_group() as self._tasks:
                task_status.started()
                if self._expected:
                    await load_bridges()
                await anyio.sleep_forever()
        finally:
            self._tasks = None

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
        return (await self._all(tenancy))[server.name]

    async def bridge(self, server: LiveServer) -> Bridge:
        """To a server that speaks stdio."""
        if server not in self._bridges:
            made = await load_bridges()
            if server.tenancy.lease.over:
                raise server.tenancy.over_error()
            assert self._tasks is not None
            self._bridges.setdefault(server, made(OneServer(server), tasks=self._tasks))
        return self._bridges[server]

    async def list(self, tenancy: Tenancy) -> list[McpStatus]:
        """Those of the lease's own, in the order of their declaration."""
        found = (await self._all(tenancy)).values()
        return [server.status(sessions=self._sessions_of(server)) for server in found]

    def _sessions_of(self, server: LiveServer) -> int:
        return self._bridges[server].sessions if server in self._bridges else 0

    async def _all(self, tenancy: Tenancy) -> dict[str, LiveServer]:
        """The first time, with what its guest knows of them already."""
        lease_id = tenancy.lease.id
        if lease_id in self._of:
            return self._of[lease_id]
        lock = self._looking.setdefault(lease_id, anyio.Lock())
        async with lock:
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
            self._looking.pop(lease_id, None)
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
                tasks.start_soon(_cancel_when, tenancy.recorded, tasks.cancel_scope)
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
            if (bridge := self._bridges.pop(server, None)) is not None:
                bridge.end()


async def load_bridges() -> type[Bridge]:
    """What speaks with clients. The first time it takes most of a second, beside the loop."""
    module = await to_thread.run_sync(import_module, "sandboxd.mcp.bridge")
    made: type[Bridge] = module.Bridge
    return made


def label_of(tenancy: Tenancy, name: str) -> str:
    """What metrics call a server: those of leases alone have one name together."""
    configured: Container[str] = by_name(tenancy.pool.template.mcp_servers)
    return name if name in configured else "other"


def _read_exec_id(record: ExecRecord) -> tuple[str, int]:
    """Whose generation a command is; no name for any other command."""
    kind, _, rest = record.exec_id.partition(":")
    name, _, digits = rest.rpartition(":")
    return (name, int(digits)) if kind == "mcp" and digits.isdecimal() else ("", 0)


async def _cancel_when(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
