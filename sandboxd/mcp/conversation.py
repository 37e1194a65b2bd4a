"""What is said between one server's process and all of its callers: nobody's ids meet another's.

The server sees a single client. Requests of callers get numbers of ours; what the server asks goes
to a caller that is being served and can answer. State changes in synchronous code only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import anyio
from anyio.abc import TaskGroup

from sandboxd.errors import SandboxdError
from sandboxd.mcp.callers import Call, Caller, can_take
from sandboxd.mcp.messages import (
    METHOD_NOT_FOUND,
    Message,
    RequestId,
    error_of,
    is_notification,
    is_request,
    notification,
    params_of,
    refusal_of,
    result_of,
)
from sandboxd.mcp.program import Program
from sandboxd.wire.codes import ErrorCode, Fault

_GREETING_S = 60.0
_LAST_WORDS_S = 2.0  # for the end of a program that takes no more to be known
_MOST_CALLS = 4096  # on their way at once, of all callers
_MOST_QUESTIONS = 256  # of the server's


class Refused(Exception):
    """The server refused the handshake. error: as it said."""

    def __init__(self, error: Any) -> None:
        super().__init__("the server refused the handshake")
        self.error = error


class Conversation:
    """See the module. tasks: own what is sent in answer to the server. answered: is told of each
    call that is over.
    """

    def __init__(
        self,
        program: Program,
        *,
        ids: Iterator[int],
        tasks: TaskGroup,
        answered: Callable[[Call, Message], None],
    ) -> None:
        self.program = program
        self.over: SandboxdError | None = None  # why nothing is answered any more
        self.ended = anyio.Event()
        self.greeting: Mapping[str, Any] | None = None  # what it said to `initialize`
        self._ids = ids
        self._call_over = answered
        self._tasks = tasks
        self._greeting = anyio.Lock()
        self._calls: dict[int, Call] = {}
        self._questions: dict[int, tuple[Caller, Message]] = {}
        self._own: dict[int, _Own] = {}
        self._callers: list[Caller] = []

    @property
    def in_flight(self) -> int:
        """How many requests of callers are on their way."""
        return len(self._calls)

    # What callers do.

    def enter(self, caller: Caller) -> None:
        """From now on it hears what is for everybody. Twice is as good as once."""
        if caller not in self._callers:
            self._callers.append(caller)

    def leave(self, caller: Caller) -> None:
        """It hears nothing any more, and what it was asked is answered in its place."""
        if caller in self._callers:
            self._callers.remove(caller)
        for number, call in list(self._calls.items()):
            if call.caller is caller:
                del self._calls[number]
        for number, (asked, question) in list(self._questions.items()):
            if asked is caller:
                del self._questions[number]
                self._send_soon(error_of(question["id"], METHOD_NOT_FOUND, "the client is gone"))

    async def greet(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The server's answer to `initialize`. It is asked once, by whoever comes first.

        Raises Refused, `start_failed` for a server that does not answer, and as `ask`.
        """
        async with self._greeting:
            if self.greeting is None:
                self.greeting = await self._shake_hands(params)
        return self.greeting

    async def _shake_hands(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            with anyio.fail_after(_GREETING_S):
                answer = await self._ask_own("initialize", params)
        except TimeoutError:
            raise SandboxdError(
                ErrorCode.START_FAILED,
                f"the MCP server did not answer `initialize` within {_GREETING_S:g} s",
                fault=Fault.TASK,
                mask=True,
            ) from None
        result = answer.get("result")
        if not isinstance(result, dict):
            raise Refused(answer.get("error"))
        await self._write(notification("notifications/initialized", {}))
        return result

    async def ask(self, caller: Caller, request: Message) -> None:
        """Pass a request on; its answer goes to `caller.heard`, a death included.

        Raises what keeps it from being sent, then nothing is answered. Cancelled: it may have been
        sent, and its answer comes.
        """
        if self.over is not None:
            raise self.over.again()
        if len(self._calls) >= _MOST_CALLS:
            raise SandboxdError(
                ErrorCode.CAPACITY, f"{_MOST_CALLS} calls are on their way", retry_after_s=1
            )
        number, params = next(self._ids), params_of(request)
        meta = params.get("_meta")
        sent, token = {**request, "id": number}, None
        if isinstance(meta, dict) and (token := meta.get("progressToken")) is not None:
            sent["params"] = {**params, "_meta": {**meta, "progressToken": number}}
        self._calls[number] = Call(number, caller, request, token)
        try:
            await self._write(sent)
        except SandboxdError:
            self._calls.pop(number, None)
            raise

    async def tell(self, message: Message) -> None:
        """Pass a notification on. Raises as `ask`."""
        await self._write(message)

    def cancel(self, caller: Caller, request_id: RequestId, *, reason: str = "") -> bool:
        """The caller does not want its answer any more; False where nothing was on its way."""
        for number, call in self._calls.items():
            if call.caller is caller and call.request_id == request_id:
                del self._calls[number]
                params = {"requestId": number, **({"reason": reason} if reason else {})}
                self._send_soon(notification("notifications/cancelled", params))
                return True
        return False

    async def answer(self, caller: Caller, message: Message) -> bool:
        """Pass on what a caller answers to a question of the server's; False for none of it."""
        asked = self._questions.get(message["id"])
        if asked is None or asked[0] is not caller:
            return False
        del self._questions[message["id"]]
        await self._write({**message, "id": asked[1]["id"]})
        return True

    # What the server says.

    def heard(self, message: Message) -> None:
        """Take one message of the server's."""
        if is_request(message):
            self._asked(message)
        elif is_notification(message):
            self._told(message)
        else:
            self._answered(message)

    def lost(self) -> None:
        """A message of the server's was too large to be passed on. Whose it was nobody knows."""
        error = SandboxdError(
            ErrorCode.TOO_LARGE,
            "the MCP server sent a message that is too large to be passed on",
            fault=Fault.TASK,
            mask=True,
        )
        self._refuse_all(error)

    def end(self, error: SandboxdError) -> None:
        """It says nothing more, and why."""
        self.over = error
        for own in self._own.values():
            own.over.set()
        self._questions.clear()
        self._refuse_all(error)
        self.ended.set()

    def _refuse_all(self, error: SandboxdError) -> None:
        calls, self._calls = self._calls, {}
        for call in calls.values():
            self._finish(call, refusal_of(call.request_id, error))

    def _finish(self, call: Call, answer: Message) -> None:
        call.caller.heard(answer, call.request_id)
        self._call_over(call, answer)

    def _answered(self, message: Message) -> None:
        number = message["id"]
        if not isinstance(number, int):
            return
        own = self._own.get(number)
        if own is not None:
            own.answer = message
            own.over.set()
        elif (call := self._calls.pop(number, None)) is not None:
            self._finish(call, {**message, "id": call.request_id})
        elif self.greeting is None and _is_greeting(message):
            self.greeting = message["result"]  # said to an earlier daemon

    def _asked(self, request: Message) -> None:
        if request["method"] == "ping":
            self._send_soon(result_of(request["id"], {}))
            return
        call = self._serving(request)
        idle = (each for each in reversed(self._callers) if can_take(each, request))
        caller = call.caller if call is not None else next(idle, None)
        if caller is None or len(self._questions) >= _MOST_QUESTIONS:
            text = f"no client can answer {request['method']}"
            self._send_soon(error_of(request["id"], METHOD_NOT_FOUND, text))
            return
        number = next(self._ids)
        self._questions[number] = (caller, request)
        caller.heard({**request, "id": number}, None if call is None else call.request_id)

    def _serving(self, request: Message) -> Call | None:
        """The newest call whose caller can take a request: stdio does not say whose it is."""
        newest = reversed(list(self._calls.values()))
        return next((call for call in newest if can_take(call.caller, request)), None)

    def _told(self, message: Message) -> None:
        params = params_of(message)
        match message["method"]:
            case "notifications/progress":
                call = self._calls.get(params.get("progressToken"))  # type: ignore[arg-type]
                if call is not None and call.progress_token is not None:
                    restored = {**params, "progressToken": call.progress_token}
                    call.caller.heard({**message, "params": restored}, call.request_id)
            case "notifications/cancelled":
                self._withdrawn(message, params.get("requestId"))
            case _:
                self._tell_everybody(message)

    def _withdrawn(self, message: Message, request_id: Any) -> None:
        for number, (caller, question) in list(self._questions.items()):
            if question["id"] == request_id:
                del self._questions[number]
                told = {**params_of(message), "requestId": number}
                caller.heard({**message, "params": told}, self._call_of(caller))

    def _tell_everybody(self, message: Message) -> None:
        """Those who are served hear it beside their answer, for it may be about that."""
        told: list[Caller] = []
        for call in reversed(list(self._calls.values())):
            if not any(call.caller is each for each in told):
                told.append(call.caller)
                call.caller.heard(message, call.request_id)
        for caller in self._callers:
            if not any(caller is each for each in told):
                caller.heard(message, None)

    def _call_of(self, caller: Caller) -> RequestId | None:
        calls = [call for call in self._calls.values() if call.caller is caller]
        return calls[-1].request_id if calls else None

    # What is said in our own name.

    async def _ask_own(self, method: str, params: Mapping[str, Any]) -> Message:
        """The answer. Raises `over` where it ends meanwhile."""
        number, own = next(self._ids), _Own()
        self._own[number] = own
        try:
            request = {"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params)}
            await self._write(request)
            await own.over.wait()
        finally:
            del self._own[number]
        if own.answer is None:
            assert self.over is not None
            raise self.over.again()
        return own.answer

    async def _write(self, message: Message) -> None:
        if self.over is not None:
            raise self.over.again()
        try:
            await self.program.write(message)
        except (SandboxdError, TimeoutError) as error:
            with anyio.move_on_after(_LAST_WORDS_S):
                await self.ended.wait()
            if self.over is not None:
                raise self.over.again() from error
            if isinstance(error, SandboxdError):
                raise
            raise takes_nothing() from error

    def _send_soon(self, message: Message) -> None:
        self._tasks.start_soon(self._try_to_send, message, name="mcp-answer")

    async def _try_to_send(self, message: Message) -> None:
        with suppress(SandboxdError):  # its end, if that is why, is told to those who call
            await self._write(message)


class _Own:
    """A request of ours, and its answer once it is there."""

    __slots__ = ("answer", "over")

    def __init__(self) -> None:
        self.over = anyio.Event()
        self.answer: Message | None = None


def takes_nothing() -> SandboxdError:
    """What a call is answered on a server that lives and does not read."""
    return SandboxdError(
        ErrorCode.TIMEOUT,
        "the MCP server does not take the message: it reads nothing",
        fault=Fault.UNKNOWN,
        mask=True,
    )


def _is_greeting(message: Message) -> bool:
    result = message.get("result")
    return isinstance(result, dict) and {"protocolVersion", "capabilities"} <= result.keys()
