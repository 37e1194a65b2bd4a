"""Servers without state that leases share: each in sandboxes of its own, as many as it needs.

Their leases belong to nobody's key. A daemon that starts again finds them by their owner's name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import structlog
from anyio.abc import TaskGroup

from sandboxd.errors import SandboxdError
from sandboxd.leases.tenancy import Tenancy
from sandboxd.mcp.callers import Caller
from sandboxd.mcp.conversation import Conversation
from sandboxd.mcp.live import LiveServer
from sandboxd.mcp.messages import Message, RequestId
from sandboxd.mcp.replica import Replica
from sandboxd.mcp.target import hello_of
from sandboxd.model.mcp_server import McpState, McpStatus, SharedMcpServer
from sandboxd.wire.codes import ErrorCode

log = structlog.get_logger(__name__)

OWNER = "mcp:"  # no key has a colon in its name
_PATIENCE_S = 60.0  # of a call, for a sandbox that has room for it
_LOOK_S = 5.0  # at most, between two looks for what is idle or dead
_GIVE_UP_S = 10.0  # for a sandbox to be given back


class SharedServer:
    """One of them, as a `Target`. lease: leases a sandbox for it; find: the server in one;
    release: gives one back.
    """

    def __init__(
        self,
        shared: SharedMcpServer,
        *,
        lease: Callable[[SharedMcpServer], Awaitable[Tenancy]],
        find: Callable[[Tenancy, str], Awaitable[LiveServer]],
        release: Callable[[Tenancy], Awaitable[object]],
    ) -> None:
        self.shared = shared
        self._lease = lease
        self._find = find
        self._release = release
        self._replicas: list[Replica] = []
        self._starting = 0
        self._failure: SandboxdError | None = None  # of the last start, while nothing runs
        self._callers: dict[Caller, None] = {}
        self._changed = anyio.Event()
        self._used = False
        self._tasks: TaskGroup | None = None

    @property
    def name(self) -> str:
        """What it is called."""
        return self.shared.server.name

    def status(self) -> McpStatus:
        """As it is now."""
        state = McpState.STARTING if self._starting else McpState.STOPPED
        if self._replicas:
            state = McpState.RUNNING
        return McpStatus(
            name=self.name,
            scope="shared",
            transport="http" if self.shared.server.port else "stdio",
            state=state,
            restarts=sum(replica.live.restarts for replica in self._replicas),
            replicas=len(self._replicas),
        )

    async def run(self) -> None:
        """Own what starts and ends its sandboxes, until cancelled; they live on."""
        async with anyio.create_task_group() as self._tasks:
            while True:
                with anyio.move_on_after(min(_LOOK_S, self.shared.idle_s / 2)):
                    await self._changed.wait()
                self._tidy()
                await anyio.lowlevel.checkpoint()

    def _tidy(self) -> None:
        """Give back what is dead or idle, and start what is to be there always."""
        assert self._tasks is not None
        due = anyio.current_time() - self.shared.idle_s
        for replica in list(self._replicas):
            since = replica.idle_since()
            idle = since is not None and since < due
            spare = len(self._replicas) > self.shared.least
            if not replica.alive or (idle and spare):
                self._replicas.remove(replica)
                self._tasks.start_soon(self._give_back, replica, name=f"mcp-end-{self.name}")
        missing = self.shared.least - len(self._replicas) - self._starting
        if self._used and self._failure is None:
            for _ in range(missing):
                self._start()

    async def _give_back(self, replica: Replica) -> None:
        with suppress(SandboxdError), anyio.move_on_after(_GIVE_UP_S):
            await self._release(replica.tenancy)

    async def adopt(self, tenancy: Tenancy) -> None:
        """One that an earlier daemon leased."""
        self._used = True
        self._enter(Replica(tenancy, await self._find(tenancy, self.name)))

    def _start(self) -> None:
        assert self._tasks is not None
        self._starting += 1
        self._tasks.start_soon(self._begin, name=f"mcp-start-{self.name}")

    async def _begin(self) -> None:
        try:
            tenancy = await self._lease(self.shared)
            self._enter(Replica(tenancy, await self._find(tenancy, self.name)))
            self._failure = None
        except SandboxdError as error:
            self._failure = error
            log.warning("mcp.replica_failed", server=self.name, error=str(error))
        finally:
            self._starting -= 1
            self.ring()

    def _enter(self, replica: Replica) -> None:
        replica.live.when_over = self.ring
        self._replicas.append(replica)

    def ring(self) -> None:
        """Have those look again who wait for something to change."""
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def _pick(self) -> Replica:
        """The one that has least to do, and room. Raises why there is none, and `capacity`."""
        self._used, self._failure = True, None
        with anyio.move_on_after(_PATIENCE_S):
            while True:
                alive = [replica for replica in self._replicas if replica.alive]
                best = min(alive, key=lambda replica: replica.in_flight, default=None)
                if best is not None and best.in_flight < self.shared.max_in_flight:
                    return best
                if self._failure is not None and not self._starting and not alive:
                    raise self._failure.again()
                if not self._starting and len(alive) < self.shared.most and not self._failure:
                    self._start()
                changed = self._changed
                await changed.wait()
        raise SandboxdError(
            ErrorCode.CAPACITY,
            f"the shared MCP server {self.name!r} has all its {self.shared.most} sandboxes busy",
            retry_after_s=1,
        )

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[LiveServer]:
        """A server that one HTTP request may be passed on to."""
        replica = await self._pick()
        replica.passing += 1
        try:
            yield replica.live
        finally:
            replica.passing -= 1
            replica.used_at = anyio.current_time()
            self.ring()

    # What clients do; see Target.

    async def _talk(self) -> Conversation:
        replica = await self._pick()
        talk = await replica.live.conversation()
        replica.used_at = anyio.current_time()
        for caller in self._callers:
            talk.enter(caller)
        return talk

    async def greet(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """See Target."""
        return await (await self._talk()).greet(params)

    async def ask(self, caller: Caller, request: Message) -> None:
        """See Target."""
        talk = await self._talk()
        if talk.greeting is None:
            await talk.greet(hello_of(caller))
        await talk.ask(caller, request)

    async def tell(self, message: Message) -> None:
        """See Target. Each sandbox may be the one that it concerns."""
        for talk in self._talks():
            await talk.tell(message)

    async def answer(self, caller: Caller, message: Message) -> None:
        """See Target."""
        for talk in self._talks():
            if await talk.answer(caller, message):
                return

    def cancel(self, caller: Caller, request_id: RequestId, *, reason: str = "") -> None:
        """See Target."""
        for talk in self._talks():
            if talk.cancel(caller, request_id, reason=reason):
                return

    async def enter(self, caller: Caller) -> None:
        """See Target."""
        self._callers[caller] = None
        for talk in self._talks():
            talk.enter(caller)

    def leave(self, caller: Caller) -> None:
        """See Target."""
        self._callers.pop(caller, None)
        for talk in self._talks():
            talk.leave(caller)
        self.ring()

    def _talks(self) -> list[Conversation]:
        talks = [replica.live.talk for replica in self._replicas]
        return [talk for talk in talks if talk is not None]
