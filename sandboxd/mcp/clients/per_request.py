"""Clients of the era without sessions: each request says all that there is to know of its client.

Servers on stdio are spoken to in the handshake's words, so requests lose what only this era has,
and answers get it. What a server asks in between goes back as `input_required`, and its call waits
for the answers.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import anyio
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundLadderRejection,
    InboundModernRoute,
    classify_inbound_request,
    find_duplicated_routing_header,
    unsupported_protocol_version_rejection,
)
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import (
    HEADER_MISMATCH,
    INVALID_REQUEST,
    LOG_LEVEL_META_KEY,
    SERVER_INFO_META_KEY,
)
from starlette.types import Receive, Scope, Send

from sandboxd.errors import SandboxdError
from sandboxd.mcp.clients.answers import answer
from sandboxd.mcp.clients.event_stream import EventStream
from sandboxd.mcp.clients.mailbox import Mailbox
from sandboxd.mcp.conversation import Refused
from sandboxd.mcp.messages import (
    INVALID_PARAMS,
    SESSIONLESS,
    Message,
    RequestId,
    crowded,
    error_of,
    is_notification,
    is_request,
    notification,
    params_of,
    refusal_of,
    result_of,
)
from sandboxd.mcp.target import Target, hello_of

_QUIET_S = 15.0  # a call that takes longer is answered as a stream, which proxies do not cut
_SUSPENDED_S = 600.0  # for a client to come back with what the server asked
_MOST_SUSPENDED = 256  # of one server
_ENVELOPE = "io.modelcontextprotocol/"
_CACHED = {
    "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read",
    "server/discover",
}  # fmt: skip
_CHANGES = {
    "toolsListChanged": "notifications/tools/list_changed",
    "promptsListChanged": "notifications/prompts/list_changed",
    "resourcesListChanged": "notifications/resources/list_changed",
}


class OneCaller:
    """The client of one request, and of its retries with what the server asked for."""

    def __init__(self, route: InboundModernRoute) -> None:
        capabilities, info = route.client_capabilities, route.client_info
        self.capabilities: Mapping[str, Any] = (
            capabilities if isinstance(capabilities, dict) else {}
        )
        self.info: Mapping[str, Any] = (
            info if isinstance(info, dict) else {"name": "unknown", "version": "0"}
        )
        self.questions: dict[str, Message] = {}  # of the server's, by the name we gave them
        self.mail = Mailbox()

    def heard(self, message: Message, about: RequestId | None) -> None:
        """See Caller. One that reads too slowly loses notifications, and no answer."""
        if is_notification(message):
            self.mail.put(message)
        else:
            self.mail.put_answer(message)


class PerRequest:
    """Serves one server's clients of this era."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._suspended: dict[str, tuple[OneCaller, RequestId, float]] = {}

    async def handle(self, body: Any, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request. body: its JSON, None for none. receive: what comes after it."""
        self._expire()
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["method"] != "POST":
            await answer(send, 405, error_of(None, INVALID_REQUEST, "Method Not Allowed"))
            return
        accept = headers.get("accept", "*/*")
        if "application/json" not in accept and "*/*" not in accept:
            await answer(send, 406, error_of(None, INVALID_REQUEST, "Not Acceptable"))
            return
        if isinstance(body, dict) and "method" in body and "id" not in body:
            version = headers.get("mcp-protocol-version", "")
            rejection = unsupported_protocol_version_rejection(version)
            if rejection is not None:
                await answer(send, 400, _rejected(None, rejection))
            else:
                await answer(send, 202, None)
            return
        if not (isinstance(body, dict) and is_request(body)):
            text = "Body must be a single JSON-RPC request or notification object"
            await answer(send, 400, error_of(None, INVALID_REQUEST, text))
            return
        route = _route(body, scope, headers)
        if isinstance(route, InboundLadderRejection):
            rejected = _rejected(body["id"], route)
            await answer(send, ERROR_CODE_HTTP_STATUS.get(route.code, 200), rejected)
            return
        await self._serve(body, route, receive, send)

    async def _serve(
        self, request: Message, route: InboundModernRoute, receive: Receive, send: Send
    ) -> None:
        stream = EventStream(receive, send, quiet_s=_QUIET_S)
        async with stream.while_there():
            try:
                last = await self._answer(request, route, stream)
            except Refused as refused:
                last = {"jsonrpc": "2.0", "id": request["id"], "error": refused.error}
            except SandboxdError as error:
                last = refusal_of(request["id"], error)
            code = last.get("error", {}).get("code")
            await stream.end(last, status=ERROR_CODE_HTTP_STATUS.get(code, 200))

    async def _answer(
        self, request: Message, route: InboundModernRoute, stream: EventStream
    ) -> Message:
        match request["method"]:
            case "server/discover":
                return await self._discover(request, OneCaller(route))
            case "subscriptions/listen":
                return await self._listen(request, OneCaller(route), stream)
            case _:
                return await self._pass_on(request, route, stream)

    async def _greeting(self, caller: OneCaller) -> Mapping[str, Any]:
        return await self._target.greet(hello_of(caller))

    async def _discover(self, request: Message, caller: OneCaller) -> Message:
        greeting = await self._greeting(caller)
        result = {
            "supportedVersions": [SESSIONLESS],
            "capabilities": greeting.get("capabilities", {}),
        }
        if isinstance(greeting.get("instructions"), str):
            result["instructions"] = greeting["instructions"]
        return result_of(request["id"], _modern(request, result, greeting))

    async def _pass_on(
        self, request: Message, route: InboundModernRoute, stream: EventStream
    ) -> Message:
        resumed = self._resume(request)
        caller, sent_id = resumed or (OneCaller(route), request["id"])
        wants_logs = LOG_LEVEL_META_KEY in params_of(request)["_meta"]
        suspended = False
        try:
            if resumed is None:
                await self._greeting(caller)
                await self._target.ask(caller, _legacy(request))
            else:
                await self._give_answers(caller, params_of(request).get("inputResponses"))
            async for message, _ in caller.mail:
                if is_notification(message):
                    if message["method"] != "notifications/message" or wants_logs:
                        await stream.send(message)
                elif is_request(message):
                    suspended = True
                    return self._suspend(request, caller, sent_id, message)
                else:
                    return await self._finished(request, message, caller)
            raise crowded("messages")
        finally:
            if not suspended:
                self._target.cancel(caller, sent_id, reason="the client is gone")
                self._target.leave(caller)
                caller.mail.close()

    async def _finished(self, request: Message, message: Message, caller: OneCaller) -> Message:
        if "result" not in message:
            return {**message, "id": request["id"]}
        greeting = await self._greeting(caller)
        return result_of(request["id"], _modern(request, message["result"], greeting))

    # What a server asks in between.

    def _suspend(
        self, request: Message, caller: OneCaller, sent_id: RequestId, question: Message
    ) -> Message:
        if len(self._suspended) >= _MOST_SUSPENDED:
            raise crowded("calls that wait for input")
        state, name = secrets.token_urlsafe(16), f"q{question['id']}"
        caller.questions = {name: question}
        self._suspended[state] = (caller, sent_id, anyio.current_time())
        asked = {"method": question["method"], "params": params_of(question)}
        result = {
            "resultType": "input_required",
            "inputRequests": {name: asked},
            "requestState": state,
        }
        return result_of(request["id"], result)

    def _resume(self, request: Message) -> tuple[OneCaller, RequestId] | None:
        state = params_of(request).get("requestState")
        found = self._suspended.pop(state, None) if isinstance(state, str) else None
        return None if found is None else found[:2]

    async def _give_answers(self, caller: OneCaller, answers: Any) -> None:
        for name, question in caller.questions.items():
            said = answers.get(name) if isinstance(answers, dict) else None
            if isinstance(said, dict):
                reply = result_of(question["id"], said)
            else:
                reply = error_of(question["id"], INVALID_PARAMS, "the client gave no answer")
            await self._target.answer(caller, reply)
        caller.questions = {}

    def _expire(self) -> None:
        due = anyio.current_time() - _SUSPENDED_S
        for state, (caller, _, since) in list(self._suspended.items()):
            if since > due:
                return
            del self._suspended[state]
            self._target.leave(caller)
            caller.mail.close()

    # What a server says unasked.

    async def _listen(self, request: Message, caller: OneCaller, stream: EventStream) -> Message:
        wanted = params_of(request).get("notifications")
        wanted = wanted if isinstance(wanted, dict) else {}
        methods = {method for name, method in _CHANGES.items() if wanted.get(name) is True}
        uris = [uri for uri in wanted.get("resourceSubscriptions") or () if isinstance(uri, str)]
        meta = {SUBSCRIPTION_ID_META_KEY: request["id"]}
        await self._greeting(caller)
        await self._target.enter(caller)
        try:
            for uri in uris:
                subscribe = {"method": "resources/subscribe", "params": {"uri": uri}}
                await self._target.ask(caller, {"jsonrpc": "2.0", "id": f"sub-{uri}", **subscribe})
            honoured: dict[str, Any] = {name: True for name in _CHANGES if wanted.get(name) is True}
            if uris:
                honoured["resourceSubscriptions"] = uris
            acknowledged = {"notifications": honoured, "_meta": meta}
            await stream.send(
                notification("notifications/subscriptions/acknowledged", acknowledged)
            )
            async for message, _ in caller.mail:
                params = params_of(message)
                updated = message.get("method") == "notifications/resources/updated"
                if message.get("method") in methods or (updated and params.get("uri") in uris):
                    tagged = {**params, "_meta": {**params.get("_meta", {}), **meta}}
                    await stream.send({**message, "params": tagged})
            return result_of(request["id"], {"resultType": "complete", "_meta": meta})
        finally:
            self._target.leave(caller)
            caller.mail.close()


def _route(
    body: Message, scope: Scope, headers: Mapping[str, str]
) -> InboundModernRoute | InboundLadderRejection:
    lines = [(name.decode(), value.decode("latin-1")) for name, value in scope["headers"]]
    if (twice := find_duplicated_routing_header(lines)) is not None:
        text = f"{twice} header appears more than once"
        return InboundLadderRejection(code=HEADER_MISMATCH, message=text)
    return classify_inbound_request(body, headers=headers)


def _rejected(request_id: RequestId | None, rejection: InboundLadderRejection) -> Message:
    return error_of(request_id, rejection.code, rejection.message, rejection.data)


def _legacy(request: Message) -> Message:
    """The same in the handshake's words."""
    params = dict(params_of(request))
    meta = params.pop("_meta", None)
    params.pop("inputResponses", None)
    params.pop("requestState", None)
    if isinstance(meta, dict):
        kept = {name: value for name, value in meta.items() if not name.startswith(_ENVELOPE)}
        if kept:
            params["_meta"] = kept
    return {**request, "params": params}


def _modern(
    request: Message, result: Mapping[str, Any], greeting: Mapping[str, Any]
) -> dict[str, Any]:
    """A result as this era has it."""
    full: dict[str, Any] = {"resultType": "complete", **result}
    if request["method"] in _CACHED:
        full = {"ttlMs": 0, "cacheScope": "private", **full}
    meta = full.get("_meta")
    meta = meta if isinstance(meta, dict) else {}
    if isinstance(greeting.get("serverInfo"), dict):
        full["_meta"] = {SERVER_INFO_META_KEY: greeting["serverInfo"], **meta}
    return full
