"""Clients of the era of `initialize`: their sessions, each spoken with by the `mcp` package's own
transport.

A session is a client's standing stream and what it declared; where its requests go is its address's
business alone. Losing one loses nothing: its client begins another.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from typing import Any, cast

import anyio
import mcp_types
import structlog
from anyio.abc import TaskGroup, TaskStatus
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from starlette.types import Receive, Scope, Send

from sandboxd.errors import SandboxdError
from sandboxd.mcp.clients.answers import answer
from sandboxd.mcp.clients.mailbox import Mailbox
from sandboxd.mcp.conversation import Refused
from sandboxd.mcp.messages import (
    HANDSHAKES,
    LATEST_HANDSHAKE,
    Message,
    RequestId,
    crowded,
    error_of,
    is_request,
    params_of,
    refusal_of,
    result_of,
)
from sandboxd.mcp.target import Target
from sandboxd.model.ids import new_id

log = structlog.get_logger(__name__)
# It calls an error what clients do: to end a session while it is served. Who asks is told anyway.
logging.getLogger("mcp.server.streamable_http").setLevel(logging.CRITICAL)

MOST_SESSIONS = 256  # of one server; more end those that nobody has used for longest
IDLE_S = 1800.0


class Session:
    """One client. Its requests are passed on in their order. transport: its HTTP side."""

    def __init__(self, target: Target, *, session_id: str | None) -> None:
        self.capabilities: Mapping[str, Any] = {}
        self.info: Mapping[str, Any] = {"name": "sandboxd", "version": "1"}
        self.calls = 0  # HTTP requests in flight
        # Without a session it lasts as long as its one request.
        idle_s = None if session_id is None else IDLE_S
        self.transport = StreamableHTTPServerTransport(session_id, idle_timeout=idle_s)
        self._target = target
        self._over = anyio.CancelScope()
        self._mail = Mailbox()
        self._unanswered: dict[RequestId, ServerMessageMetadata] = {}

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Pass messages both ways until it is ended."""
        with self._over, closing(self._mail):
            try:
                async with self.transport.connect() as (said, hearing):
                    task_status.started()
                    async with _until_idle(self.transport), anyio.create_task_group() as tasks:
                        tasks.start_soon(self._speak, hearing, name="mcp-session-speak")
                        with suppress(anyio.ClosedResourceError):  # its client ended it
                            async for each in said:
                                if isinstance(each, SessionMessage):
                                    self._take(each, tasks)
                        tasks.cancel_scope.cancel()
            finally:
                self._target.leave(self)
                with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                    await self.transport.terminate()

    def end(self) -> None:
        """Let its client begin another."""
        self._over.cancel()

    def heard(self, message: Message, about: RequestId | None) -> None:
        """See Caller."""
        if "method" not in message:
            self._unanswered.pop(message["id"], None)
        if not self._mail.put(message, about):
            self.end()

    async def _speak(self, hearing: Any) -> None:
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async for message, about in self._mail:
                parsed = mcp_types.jsonrpc_message_adapter.validate_python(message)
                metadata = (
                    None if about is None else ServerMessageMetadata(related_request_id=about)
                )
                await hearing.send(SessionMessage(parsed, metadata))

    def _take(self, said: SessionMessage, tasks: TaskGroup) -> None:
        message = said.message.model_dump(by_alias=True, exclude_unset=True)
        metadata = cast("ServerMessageMetadata", said.metadata)
        if is_request(message):
            self._unanswered[message["id"]] = metadata
            tasks.start_soon(self._ask, message, name="mcp-session-ask")
        else:
            tasks.start_soon(self._tell, message, name="mcp-session-tell")

    async def _ask(self, request: Message) -> None:
        try:
            if request["method"] == "initialize":
                await self._greet(request)
            else:
                await self._target.ask(self, request)
        except Refused as refused:
            answer = {"jsonrpc": "2.0", "id": request["id"], "error": refused.error}
            self.heard(answer, request["id"])
        except SandboxdError as error:
            self.heard(refusal_of(request["id"], error), request["id"])

    async def _greet(self, request: Message) -> None:
        params = params_of(request)
        capabilities, info = params.get("capabilities"), params.get("clientInfo")
        self.capabilities = capabilities if isinstance(capabilities, dict) else {}
        self.info = info if isinstance(info, dict) else self.info
        asked = params.get("protocolVersion")
        known = asked if asked in HANDSHAKES else LATEST_HANDSHAKE
        result = await self._target.greet({**params, "protocolVersion": known})
        await self._target.enter(self)
        version = older_of(known, result.get("protocolVersion"))
        self.heard(result_of(request["id"], {**result, "protocolVersion": version}), request["id"])

    async def _tell(self, message: Message) -> None:
        with suppress(SandboxdError):  # nobody is to answer
            match message.get("method"):
                case None:
                    await self._target.answer(self, message)
                case "notifications/initialized":
                    pass  # said once, when the server was greeted
                case "notifications/cancelled":
                    await self._cancel(params_of(message))
                case _:
                    await self._target.tell(message)

    async def _cancel(self, params: Mapping[str, Any]) -> None:
        request_id = params.get("requestId")
        if request_id is None:
            return
        self._target.cancel(self, request_id, reason=str(params.get("reason") or ""))
        metadata = self._unanswered.pop(request_id, None)
        if metadata is not None and metadata.on_request_unanswered is not None:
            await metadata.on_request_unanswered()


class Sessions:
    """The clients of one server. tasks: own them."""

    def __init__(self, target: Target, *, tasks: TaskGroup) -> None:
        self._target = target
        self._tasks = tasks
        self._by_id: OrderedDict[str, Session] = OrderedDict()  # last used last

    def __len__(self) -> int:
        return len(self._by_id)

    async def handle(
        self, message: Message | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve one HTTP request, whose body `receive` gives. message: what it says, if it is one.

        A session that nobody knows is 404, so that its client begins another.
        """
        headers = dict(scope["headers"])
        session_id = headers.get(b"mcp-session-id", b"").decode("latin-1")
        if message is not None and message.get("method") == "initialize":
            scope = {**scope, "headers": _without_session(scope)}
            await self._serve(await self._begin(new_id("mcp")), scope, receive, send)
        elif session_id and session_id not in self._by_id:
            await answer(send, 404, error_of(None, -32001, "Session not found"))
        elif session_id:
            await self._serve(self._by_id[session_id], scope, receive, send)
        elif scope["method"] == "POST":
            await self._serve_without(scope, receive, send)
        else:
            await answer(send, 405, error_of(None, -32600, "Method Not Allowed"))

    def end(self) -> None:
        """End them all."""
        for session in list(self._by_id.values()):
            session.end()

    async def _begin(self, session_id: str) -> Session:
        if len(self._by_id) >= MOST_SESSIONS:
            idle = next((each for each in self._by_id.values() if not each.calls), None)
            if idle is None:
                raise crowded("sessions")
            idle.end()
            self._strike(idle)
        session = self._by_id[session_id] = Session(self._target, session_id=session_id)
        await self._tasks.start(self._keep, session, name=f"mcp-session-{session_id}")
        return session

    async def _keep(
        self, session: Session, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        try:
            await session.run(task_status=task_status)
        except Exception:  # what one client brings about ends no other, nor the daemon
            log.exception("mcp.session_broken", session_id=session.transport.mcp_session_id)
        finally:
            self._strike(session)

    def _strike(self, session: Session) -> None:
        session_id = session.transport.mcp_session_id
        if session_id is not None and self._by_id.get(session_id) is session:
            del self._by_id[session_id]

    async def _serve(self, session: Session, scope: Scope, receive: Receive, send: Send) -> None:
        session.calls += 1
        try:
            await session.transport.handle_request(scope, receive, send)
        finally:
            session.calls -= 1
            if (session_id := session.transport.mcp_session_id) in self._by_id:
                self._by_id.move_to_end(str(session_id))
            if session.transport.is_terminated:  # by its client's DELETE
                session.end()

    async def _serve_without(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request of a client that never began a session."""
        session = Session(self._target, session_id=None)
        await self._tasks.start(self._keep, session, name="mcp-no-session")
        try:
            await session.transport.handle_request(scope, receive, send)
        finally:
            session.end()


@asynccontextmanager
async def _until_idle(transport: StreamableHTTPServerTransport) -> AsyncIterator[None]:
    """Cancel the block once nobody has used the session for `IDLE_S`."""
    with transport.idle_scope or anyio.CancelScope():
        yield


def older_of(asked: str, negotiated: Any) -> str:
    """The version that a client is told: what its server agreed to, or what it asked for."""
    if negotiated not in HANDSHAKES:
        return str(negotiated)
    return HANDSHAKES[min(HANDSHAKES.index(asked), HANDSHAKES.index(negotiated))]


def _without_session(scope: Scope) -> list[tuple[bytes, bytes]]:
    return [each for each in scope["headers"] if each[0] != b"mcp-session-id"]
