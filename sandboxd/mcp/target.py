"""What clients of either era speak with: one server of a lease, or a shared one's many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from sandboxd.mcp.callers import Caller
from sandboxd.mcp.conversation import Conversation
from sandboxd.mcp.live import LiveServer
from sandboxd.mcp.messages import LATEST_HANDSHAKE, Message, RequestId


class Target(Protocol):
    """Every call raises SandboxdError for a server that does not answer."""

    async def greet(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The server's answer to `initialize`. Raises Refused."""
        ...

    async def ask(self, caller: Caller, request: Message) -> None:
        """Pass a request on, whose answer `caller` hears; one that was greeted."""
        ...

    async def tell(self, message: Message) -> None:
        """Pass a notification on."""
        ...

    async def answer(self, caller: Caller, message: Message) -> None:
        """Pass on what a caller answers to the server; nothing where it was not asked."""
        ...

    def cancel(self, caller: Caller, request_id: RequestId, *, reason: str = "") -> None:
        """The caller does not want an answer any more."""
        ...

    async def enter(self, caller: Caller) -> None:
        """From now on it hears what is for everybody."""
        ...

    def leave(self, caller: Caller) -> None:
        """It hears nothing any more."""
        ...


class OneServer:
    """A `Target` that is one server of a lease."""

    def __init__(self, server: LiveServer) -> None:
        self.server = server
        self._entered: dict[Caller, Conversation] = {}

    async def greet(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """See Target."""
        self.server.tell_once()
        talk = await self.server.conversation()
        self.server.hello = params
        return await talk.greet(params)

    async def ask(self, caller: Caller, request: Message) -> None:
        """See Target. Who was there before a restart hears of that once, instead of an answer."""
        talk = await self._talk(caller)
        if talk.greeting is None:
            await talk.greet(self.server.hello or hello_of(caller))
        await talk.ask(caller, request)

    async def _talk(self, caller: Caller) -> Conversation:
        if caller not in self._entered:
            self.server.tell_once()
            return await self.server.conversation()
        talk = await self.server.conversation()
        if self._entered[caller] is not talk:
            self._entered[caller] = talk
            talk.enter(caller)
            self.server.tell_death()
        return talk

    async def tell(self, message: Message) -> None:
        """See Target."""
        await (await self.server.conversation()).tell(message)

    async def answer(self, caller: Caller, message: Message) -> None:
        """See Target."""
        if (talk := self.server.talk) is not None:
            await talk.answer(caller, message)

    def cancel(self, caller: Caller, request_id: RequestId, *, reason: str = "") -> None:
        """See Target."""
        if (talk := self.server.talk) is not None:
            talk.cancel(caller, request_id, reason=reason)

    async def enter(self, caller: Caller) -> None:
        """See Target."""
        talk = await self.server.conversation()
        talk.enter(caller)
        self._entered[caller] = talk

    def leave(self, caller: Caller) -> None:
        """See Target."""
        self._entered.pop(caller, None)
        if (talk := self.server.talk) is not None:
            talk.leave(caller)


def hello_of(caller: Caller) -> dict[str, Any]:
    """What a server is told of a client that did not introduce itself by `initialize`."""
    return {
        "protocolVersion": LATEST_HANDSHAKE,
        "capabilities": dict(caller.capabilities),
        "clientInfo": dict(caller.info),
    }
