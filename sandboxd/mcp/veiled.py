"""A `Target` some of whose tools' arguments are hidden from all callers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio

from sandboxd.mcp.callers import Caller
from sandboxd.mcp.hidden import Veil
from sandboxd.mcp.messages import Message, RequestId
from sandboxd.mcp.target import Target

_LIST_S = 30.0
_MOST_PAGES = 100


class Veiled:
    """Everything else passes as it is."""

    def __init__(self, inner: Target, veil: Veil) -> None:
        self._inner = inner
        self._veil = veil
        self._callers: dict[Caller, _BehindTheVeil] = {}
        self._listing = anyio.Lock()

    def _behind(self, caller: Caller) -> _BehindTheVeil:
        return self._callers.setdefault(caller, _BehindTheVeil(caller, self._veil))

    async def greet(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """See Target."""
        return await self._inner.greet(params)

    async def ask(self, caller: Caller, request: Message) -> None:
        """See Target."""
        behind = self._behind(caller)
        if request["method"] == "tools/list":
            behind.lists.add(request["id"])
        elif request["method"] == "tools/call":
            if not self._veil.knows(request):
                await self._list(caller)
            request = self._veil.fill(request)
        await self._inner.ask(behind, request)

    async def _list(self, caller: Caller) -> None:
        """Learn which tools there are; one that does not say gets what is hidden from all."""
        async with self._listing:
            if self._veil.tools:
                return
            lister, params = _Lister(caller), dict[str, Any]()
            with anyio.move_on_after(_LIST_S):
                for number in range(_MOST_PAGES):
                    request = {"method": "tools/list", "params": params}
                    await self._inner.ask(lister, {"jsonrpc": "2.0", "id": number, **request})
                    answer = await lister.answer()
                    self._veil.strip(answer)
                    cursor = answer.get("result", {}).get("nextCursor")
                    if not isinstance(cursor, str):
                        break
                    params = {"cursor": cursor}
            self._inner.leave(lister)

    async def tell(self, message: Message) -> None:
        """See Target."""
        await self._inner.tell(message)

    async def answer(self, caller: Caller, message: Message) -> None:
        """See Target."""
        await self._inner.answer(self._behind(caller), message)

    def cancel(self, caller: Caller, request_id: RequestId, *, reason: str = "") -> None:
        """See Target."""
        self._inner.cancel(self._behind(caller), request_id, reason=reason)

    async def enter(self, caller: Caller) -> None:
        """See Target."""
        await self._inner.enter(self._behind(caller))

    def leave(self, caller: Caller) -> None:
        """See Target."""
        if (behind := self._callers.pop(caller, None)) is not None:
            self._inner.leave(behind)


class _BehindTheVeil:
    """A caller as the server's side sees it. lists: its requests for tools, on their way."""

    def __init__(self, caller: Caller, veil: Veil) -> None:
        self.lists: set[RequestId] = set()
        self._caller = caller
        self._veil = veil

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """See Caller."""
        return self._caller.capabilities

    @property
    def info(self) -> Mapping[str, Any]:
        """See Caller."""
        return self._caller.info

    def heard(self, message: Message, about: RequestId | None) -> None:
        """See Caller."""
        if message.get("method") == "notifications/tools/list_changed":
            self._veil.tools.clear()
        elif "method" not in message and message["id"] in self.lists:
            self.lists.discard(message["id"])
            message = self._veil.strip(message)
        self._caller.heard(message, about)


class _Lister:
    """Asks for tools in a caller's place."""

    def __init__(self, caller: Caller) -> None:
        self.capabilities, self.info = caller.capabilities, caller.info
        self._answered = anyio.Event()
        self._answer: Message = {}

    def heard(self, message: Message, about: RequestId | None) -> None:
        """See Caller."""
        if "method" not in message:
            self._answer = message
            self._answered.set()

    async def answer(self) -> Message:
        """What came."""
        await self._answered.wait()
        self._answered = anyio.Event()
        return self._answer
