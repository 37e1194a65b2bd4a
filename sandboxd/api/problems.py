"""Errors as `application/problem+json`. Whatever goes wrong leaves through here, and only a code,
a sentence and small facts go with it: never a traceback, never a secret.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route

from sandboxd.errors import SandboxdError
from sandboxd.guest.line import GuestLost
from sandboxd.telemetry.metrics import Metrics
from sandboxd.wire.codes import CODES, ErrorCode

log = structlog.get_logger(__name__)


class CallerGone(Exception):
    """The caller closed its connection; nobody hears the answer."""


_BY_STATUS = {
    400: ErrorCode.BAD_REQUEST,
    401: ErrorCode.UNAUTHENTICATED,
    403: ErrorCode.FORBIDDEN,
    404: ErrorCode.NOT_FOUND,
    405: ErrorCode.BAD_REQUEST,
    413: ErrorCode.TOO_LARGE,
    422: ErrorCode.BAD_REQUEST,
}

_SENTENCES = {
    404: "there is no such route, or not in this version",
    405: "this route does not know that method",
}
# Fields of more than one kind: the validator names the kind behind the field, which is no field.
_OF_MANY_KINDS = {"cmd", "timeout_s", "network", "mcp_servers"}


def problem_body(error: SandboxdError, *, request_id: str) -> dict[str, Any]:
    """The JSON members of a problem."""
    return {
        "type": f"urn:sandboxd:error:{error.code}",
        "title": CODES[error.code].title,
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
        "fault": error.fault,
        "retry_safe": error.retry_safe,
        "mask": error.mask,
        "retry_after_s": error.retry_after_s,
        "sandbox_id": error.sandbox_id,
        "request_id": request_id,
        "details": error.details,
    }


def problem(
    error: SandboxdError,
    *,
    request_id: str,
    metrics: Metrics,
    more: Mapping[str, str] | None = None,
) -> Response:
    """An error as a response. more: members for clients that know others."""
    metrics.faults.labels(error.fault, error.code).inc()
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status == 408:
        headers["Connection"] = "close"
    return Response(
        to_json({**problem_body(error, request_id=request_id), **(more or {})}),
        status_code=error.status or 500,
        media_type="application/problem+json",
        headers=headers,
    )


def translate(error: Exception) -> SandboxdError:
    """Any exception as one of ours. What is not foreseen is `internal`, and logged."""
    match error:
        case SandboxdError():
            return error
        case RequestValidationError():
            return _invalid(error)
        case HTTPException():
            if isinstance(error.__cause__, SandboxdError):
                return error.__cause__
            code = _BY_STATUS.get(error.status_code, ErrorCode.INTERNAL)
            status = 405 if error.status_code == 405 else None
            detail = _SENTENCES.get(error.status_code, str(error.detail))
            return SandboxdError(code, detail, status=status)
        case GuestLost():
            return error.named()
        case TimeoutError():
            return SandboxdError(ErrorCode.TIMEOUT, "the sandbox did not answer in time")
        case _:
            log.error("internal", exc_info=error)
            return SandboxdError(
                ErrorCode.INTERNAL, "something broke in the daemon; its log has more"
            )


def _invalid(error: RequestValidationError) -> SandboxdError:
    problems = [{"field": _place(item), "problem": _sentence(item)} for item in error.errors()[:20]]
    first = problems[0] if problems else {"field": "", "problem": "not valid"}
    where = f"{first['field']}: " if first["field"] else ""
    return SandboxdError(
        ErrorCode.BAD_REQUEST, f"{where}{first['problem']}", details={"problems": problems}
    )


def _place(item: dict[str, Any]) -> str:
    return "" if item["type"] == "json_invalid" else _field(item["loc"])  # there: a byte's number


def _field(location: tuple[int | str, ...]) -> str:
    parts = location[1:] if location and location[0] in {"body", "query", "path"} else location
    if len(parts) > 1 and parts[0] in _OF_MANY_KINDS:
        parts = (parts[0], *parts[2:])
    return ".".join(str(part) for part in parts)[:200]


def _sentence(item: dict[str, Any]) -> str:
    if item["type"] == "extra_forbidden":
        return "there is no such field"
    if item["type"] == "json_invalid":
        return "the body is not valid JSON"
    # Never the input itself: it may hold a secret.
    return str(item["msg"]).removeprefix("Value error, ")[:300]


def _allowed(request: Request, routes: Iterable[BaseRoute]) -> str:
    """What the path of a request can be asked."""
    methods: set[str] = set()
    for route in routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


def install(app: FastAPI, metrics: Metrics, *, routes: Sequence[BaseRoute]) -> None:
    """Have every error of a route leave as a problem. routes: all there are."""

    async def answer(request: Request, error: Exception) -> Response:
        request_id: str = request.scope.get("state", {}).get("request_id", "")
        named = translate(error)
        request.scope.setdefault("state", {})["code"] = named.code
        response = problem(named, request_id=request_id, metrics=metrics)
        if response.status_code == 405:
            response.headers["Allow"] = _allowed(request, routes)
        return response

    async def unheard(request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # the caller has gone: nothing broke, nobody reads this

    for gone in (CallerGone, ClientDisconnect):
        app.add_exception_handler(gone, unheard)
    kinds = (
        SandboxdError,
        RequestValidationError,
        HTTPException,
        GuestLost,
        TimeoutError,
        Exception,
    )
    for kind in kinds:
        app.add_exception_handler(kind, answer)
