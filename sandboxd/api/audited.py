"""Which requests are acts that an audit must show, and what is written of them.

Acts are what changes things beside the sandboxes' insides: commands, files, shells and ports are
use, and are not written. A new route is an act unless it is put among them.
"""

from __future__ import annotations

import re
from typing import Any

from fastapi import Request
from starlette.types import Scope

from sandboxd.api.auth import Principal
from sandboxd.telemetry import audit
from sandboxd.wire.codes import ErrorCode

_READING = {"GET", "HEAD", "OPTIONS"}
_USE = re.compile(r"^/v1/sandboxes/[^/]+/(execs|files|shells|ports|kernels|jupyter|mcp|prime)(/|$)")
# Sent every few seconds for as long as a run lasts; its beginning and its end are written instead.
_BEATS = re.compile(r"^/v1/runs/[^/]+/heartbeat$")
_ASKED_BY_POST = re.compile(r"^/api/v1/sandbox/.*:batchGet$")
_MCP = re.compile(r"^/v1/mcp/")
_MOST_IDS = 100
_LONGEST = 200  # of what stands in a path; ids of ours and of callers are shorter


def about(request: Request, **facts: Any) -> None:
    """Say what a request is about beside the ids in its path. Lists are cut at a hundred."""
    noted: dict[str, Any] = request.scope["state"].setdefault("audit", {})
    for name, value in facts.items():
        noted[name] = value[:_MOST_IDS] if isinstance(value, list) else value


class Ledger:
    """Writes the acts of one daemon's callers."""

    def __init__(self) -> None:
        self._refusals = audit.Refusals()

    def enter(self, scope: Scope, status: int) -> None:
        """A request has its answer, which the caller has not heard yet."""
        state: dict[str, Any] = scope["state"]
        if "principal" not in state or not _is_act(scope):
            return
        name = getattr(scope.get("route"), "operation_id", None)
        if name is None:  # no such route: nothing was asked for
            return
        facts = {
            **{place: str(value)[:_LONGEST] for place, value in scope["path_params"].items()},
            **state.get("audit", {}),
            "status": status,
            "request_id": state["request_id"],
        }
        who = name_of(state["principal"])
        if status < 400:
            audit.act(name, who=who, **facts)
        else:
            self._refusals.refused(name, who=who, **facts, code=state.get("code"))

    def stranger(self, scope: Scope, *, code: ErrorCode, status: int | None) -> None:
        """Somebody was not let in."""
        client = scope.get("client")
        self._refusals.refused(
            "enter",
            who="",
            address=client[0] if client else "",
            status=status,
            code=code,
            request_id=scope["state"]["request_id"],
        )


def name_of(caller: Principal) -> str:
    """How a caller is written down."""
    if caller.rights == "operator":
        return "operator"
    if caller.lease_id is not None:
        return f"token of {caller.lease_id}"
    return caller.owner or ""


def _is_act(scope: Scope) -> bool:
    path: str = scope["path"]
    if scope.get("method", "GET") in _READING:
        return False
    return not any(each.match(path) for each in (_USE, _BEATS, _MCP, _ASKED_BY_POST))
