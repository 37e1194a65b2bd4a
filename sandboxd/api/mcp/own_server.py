"""The daemon as an MCP server: leases, commands, cells and files as tools, for one key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import structlog
from pydantic import ValidationError

from sandboxd import __version__
from sandboxd.api.mcp.own_tools import TOOLS, Tool
from sandboxd.api.services import Services
from sandboxd.errors import SandboxdError
from sandboxd.mcp.callers import Caller
from sandboxd.mcp.messages import (
    INVALID_PARAMS,
    LATEST_HANDSHAKE,
    METHOD_NOT_FOUND,
    Message,
    RequestId,
    crowded,
    error_of,
    params_of,
    refusal_of,
    result_of,
)

log = structlog.get_logger(__name__)

_MOST_CALLS = 1024  # of one key at once
_INSTRUCTIONS = (
    "Each sandbox is a Linux machine of its own. Lease one, run commands or Python cells in it, "
    "read and write its files, and release it at the end. What is wrong with a call stands in its "
    "result: `fault` says whose doing it was."
)


class OwnServer:
    """A `Target` that acts by itself. owner: whose key it acts with; None: the operator's."""

    def __init__(self, services: Services, *, owner: str | None) -> None:
        self._services = services
        self._owner = owner
        self._calls: dict[tuple[Caller, RequestId], anyio.CancelScope] = {}

    async def greet(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """See Target."""
        return {
            "protocolVersion": params.get("protocolVersion", LATEST_HANDSHAKE),
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": "sandboxd", "version": __version__},
            "instructions": _INSTRUCTIONS,
        }

    async def ask(self, caller: Caller, request: Message) -> None:
        """See Target."""
        match request["method"]:
            case "ping":
                answer = result_of(request["id"], {})
            case "tools/list":
                answer = result_of(request["id"], {"tools": [tool.shown() for tool in TOOLS]})
            case "tools/call":
                if len(self._calls) >= _MOST_CALLS:
                    raise crowded("calls")
                answer = await self._call(caller, request)
            case method:
                answer = error_of(request["id"], METHOD_NOT_FOUND, f"there is no {method}")
        caller.heard(answer, request["id"])

    async def _call(self, caller: Caller, request: Message) -> Message:
        params = params_of(request)
        tool = next((tool for tool in TOOLS if tool.name == params.get("name")), None)
        if tool is None:
            return error_of(request["id"], INVALID_PARAMS, f"there is no tool {params.get('name')}")
        key = (caller, request["id"])
        with anyio.CancelScope() as self._calls[key]:
            try:
                return await self._run(tool, request, params.get("arguments") or {})
            finally:
                del self._calls[key]
        return error_of(request["id"], INVALID_PARAMS, "cancelled")

    async def _run(self, tool: Tool, request: Message, arguments: Any) -> Message:
        began = anyio.current_time()
        outcome = "refused"
        try:
            wanted = tool.body.model_validate(arguments)
            told = await tool.act(self._services, self._owner, wanted)
            outcome = "ok"
            return _result(request["id"], told.text, told.facts)
        except ValidationError as error:
            lines = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
            facts = {"code": "bad_request"}
            return _result(request["id"], "; ".join(lines), facts, failed=True)
        except SandboxdError as error:
            facts = refusal_of(None, error)["error"]["data"]
            return _result(request["id"], str(error), facts, failed=True)
        except TimeoutError:
            facts = {"code": "timeout"}
            return _result(request["id"], "a deadline of ours passed", facts, failed=True)
        finally:
            took_s = anyio.current_time() - began
            self._services.metrics.mcp_calls.labels("sandboxd", outcome).observe(took_s)
            log.info(
                "mcp.call",
                server="sandboxd",
                method="tools/call",
                name=tool.name,
                outcome=outcome,
                who=self._owner,
                sandbox_id=arguments.get("sandbox_id") if isinstance(arguments, dict) else None,
                duration_s=round(took_s, 6),
            )

    async def tell(self, message: Message) -> None:
        """See Target."""

    async def answer(self, caller: Caller, message: Message) -> None:
        """See Target."""

    def cancel(self, caller: Caller, request_id: RequestId, *, reason: str = "") -> None:
        """See Target. What a command or a cell does goes on under its own deadline."""
        if (scope := self._calls.get((caller, request_id))) is not None:
            scope.cancel()

    async def enter(self, caller: Caller) -> None:
        """See Target."""

    def leave(self, caller: Caller) -> None:
        """See Target."""
        for (asked, _), scope in self._calls.items():
            if asked is caller:
                scope.cancel()


def _result(
    request_id: RequestId, text: str, facts: dict[str, Any], *, failed: bool = False
) -> Message:
    content = [{"type": "text", "text": text}]
    return result_of(
        request_id, {"content": content, "structuredContent": facts, "isError": failed}
    )
