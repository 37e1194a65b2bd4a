"""Calls to an API server: in worker threads, bounded, with deadlines, errors in our words.

Bodies are JSON as the server has it, so that fields newer than the client library pass through.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import anyio
import urllib3
from anyio import CapacityLimiter, to_thread
from kubernetes.client import ApiException

from sandboxd.backends.kubernetes.talking.credentials import Access
from sandboxd.backends.parts.system_words import system_words
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

Json = dict[str, Any]
Query = Mapping[str, str | int | bool]

CALL_S = 30.0  # what a server under load may take for one call
CONNECT_S = 5.0
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_FINISH_S = 20.0  # what a cancelled call still waits for the answer to what it began
_BUSY_S = 90.0  # that a call goes on while the server asks for patience
_USUAL_RETRY_S = 1.0
_LONGEST_RETRY_S = 30.0
_DETAIL_CHARS = 2000


class Refused(Exception):
    """The server answered, and said no. status is HTTP's; reason is its own word for it."""

    def __init__(
        self, status: int, *, reason: str, detail: str, retry_after_s: float | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.detail = detail
        self.retry_after_s = retry_after_s

    @property
    def wants_patience(self) -> bool:
        """Whether the call was not begun, and is welcome later."""
        return self.status == 429 or (self.status == 503 and self.retry_after_s is not None)


@dataclass(slots=True)
class _Line:
    """What all lanes share. not_before: on the loop's clock, until when the server wants peace."""

    access: Access
    read_again: Callable[[], Access]
    not_before: float = 0.0
    renewing: anyio.Lock = field(default_factory=anyio.Lock)

    async def renew(self, stale: Access) -> None:
        """Read the credentials anew, unless somebody has meanwhile."""
        async with self.renewing:
            if self.access is stale:
                self.access = await to_thread.run_sync(self.read_again)

    async def wait_for_peace(self) -> None:
        """Until the server may be asked again."""
        await anyio.sleep_until(self.not_before)


class ApiServer:
    """One cluster's server.

    Every call raises Refused for what the server refuses, and `backend_unavailable` where it does
    not answer. A cancelled call is left to its thread: what it began may still happen.
    """

    def __init__(self, line: _Line, *, threads: int) -> None:
        self._line = line
        self._limiter = CapacityLimiter(threads)

    def lane(self, threads: int) -> ApiServer:
        """The same server with calls of its own, which never queue behind these."""
        return ApiServer(self._line, threads=threads)

    @property
    def access(self) -> Access:
        """The credentials of now."""
        return self._line.access

    async def get(self, path: str, **query: str | int | bool) -> Json:
        """An object, or a list of them."""
        return await self.call("GET", path, query=query)

    async def create(self, path: str, body: Json, **query: str | int | bool) -> Json:
        """A new object."""
        return await self.call("POST", path, query=query, body=body)

    async def begin(self, path: str, body: Json) -> Json:
        """A new object. Once it is asked for the answer is waited for, even if cancelled, for up to
        20 s, so that a caller who is interrupted knows what there is.
        """
        return await self.call("POST", path, body=body, finish=True)

    async def replace(self, path: str, body: Json) -> Json:
        """Another in an object's place."""
        return await self.call("PUT", path, body=body)

    async def patch(self, path: str, body: Json) -> Json:
        """Parts of an object: tables are merged, all else is replaced."""
        return await self.call("PATCH", path, body=body)

    async def delete(self, path: str, *, grace_s: int | None = None, uid: str = "") -> None:
        """Ask for an object's end; gone already is success. uid: of no other than that one."""
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            await self.call("DELETE", path, body=body)
        except Refused as refusal:
            if refusal.status != 404 and not (uid and refusal.status == 409):
                raise

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Json | None = None,
        finish: bool = False,
    ) -> Json:
        """One call; asked for patience, and with credentials read anew, it is made again.

        finish: as for `begin`; the waits between are cancelled as any.
        """
        deadline = anyio.current_time() + _BUSY_S
        renewed = False
        while True:
            await self._line.wait_for_peace()
            access = self._line.access
            call = partial(exchange, access, method, path, query=query, body=body)
            try:
                return await self._in_a_thread(call, finish=finish)
            except Refused as refusal:
                if refusal.status == 401 and not renewed:
                    renewed = True
                    await self._line.renew(access)
                elif refusal.wants_patience and anyio.current_time() < deadline:
                    pause = min(refusal.retry_after_s or _USUAL_RETRY_S, _LONGEST_RETRY_S)
                    self._line.not_before = anyio.current_time() + pause
                else:
                    raise _judged(refusal) from refusal

    async def _in_a_thread(self, call: Callable[[], Json], *, finish: bool) -> Json:
        run = partial(to_thread.run_sync, call, limiter=self._limiter, abandon_on_cancel=True)
        if not finish:
            return await run()
        try:
            with anyio.fail_after(_FINISH_S, shield=True):
                return await run()
        except TimeoutError as error:
            raise unavailable("no answer in time") from error

    async def renew(self, stale: Access) -> None:
        """Have the credentials read anew, for what is no plain call."""
        await self._line.renew(stale)

    async def aclose(self) -> None:
        """Close the connections. Calls that are under way end by their own deadline."""
        await to_thread.run_sync(self._line.access.api.close)


async def open_server(read_access: Callable[[], Access], *, threads: int) -> ApiServer:
    """The server that the credentials name. Raises `backend_unavailable`."""
    access = await to_thread.run_sync(read_access, abandon_on_cancel=True)
    return ApiServer(_Line(access, read_access), threads=threads)


def version_number(said: str) -> tuple[int, int] | None:
    """Of a server's `gitVersion`; None where that has none."""
    found = _VERSION.match(said)
    return None if found is None else (int(found[1]), int(found[2]))


def headers_for(access: Access) -> dict[str, str]:
    """What tells the server who we are. May read a file, or run a program that the file names."""
    headers: dict[str, str] = {"User-Agent": "sandboxd"}
    access.api.update_params_for_auth(headers, [], ["BearerToken"], "", "", None)
    return headers


def url_of(access: Access, path: str, query: Query | None) -> str:
    """The whole address of a path."""
    words = {name: str(value).lower() if isinstance(value, bool) else value
             for name, value in (query or {}).items()}  # fmt: skip
    text = f"?{urlencode(words)}" if words else ""
    return f"{access.api.configuration.host}{quote(path)}{text}"


def request(
    access: Access,
    method: str,
    path: str,
    *,
    query: Query | None = None,
    body: Json | None = None,
    read_s: float = CALL_S,
) -> urllib3.BaseHTTPResponse:
    """The server's answer, its body not yet read. Blocking.

    Raises Refused for all but success, and `backend_unavailable`.
    """
    try:
        headers = {"Accept": "application/json", **headers_for(access)}
        if body is not None:
            merges = method == "PATCH"
            headers["Content-Type"] = f"application/{'merge-patch+' if merges else ''}json"
        answer = access.api.rest_client.request(
            method,
            url_of(access, path, query),
            headers=headers,
            body=body,
            _request_timeout=(CONNECT_S, read_s),
        )
        raw: urllib3.BaseHTTPResponse = answer.response
        if raw.status // 100 != 2:
            raise _refusal(raw)
    except (urllib3.exceptions.HTTPError, ApiException, OSError, ValueError) as error:
        raise unavailable(error) from error
    return raw


def exchange(
    access: Access, method: str, path: str, *, query: Query | None = None, body: Json | None = None
) -> Json:
    """The server's whole answer. Blocking. Raises as `request`."""
    raw = request(access, method, path, query=query, body=body)
    try:
        answer: Json = json.loads(raw.data)
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise unavailable(error) from error
    return answer


def _refusal(raw: urllib3.BaseHTTPResponse) -> Refused:
    """From the server's own Status, where it is one."""
    data = raw.data[: _DETAIL_CHARS * 4]
    said: Json = {}
    try:
        found = json.loads(data)
        said = found if isinstance(found, dict) else {}
    except ValueError:
        pass
    detail = str(said.get("message") or data.decode(errors="replace") or raw.reason)
    after = str(raw.headers.get("Retry-After") or "")
    return Refused(
        raw.status,
        reason=str(said.get("reason") or ""),
        detail=detail[:_DETAIL_CHARS].strip(),
        retry_after_s=float(after) if after.isascii() and after.isdigit() else None,
    )


def _judged(refusal: Refused) -> Exception:
    """What no caller of this room need tell apart is `backend_unavailable`."""
    if refusal.status == 401:
        return SandboxdError(
            ErrorCode.BACKEND_UNAVAILABLE,
            f"the API server does not know us ({refusal.detail}): renew the credentials, which are "
            "read again at the next call",
            retry_after_s=2.0,
        )
    if refusal.status >= 500 or refusal.status == 429:
        return unavailable(f"{refusal.status}: {refusal.detail}")
    return refusal


def unavailable(error: object) -> SandboxdError:
    """The server does not answer, or not as one."""
    return SandboxdError(
        ErrorCode.BACKEND_UNAVAILABLE,
        f"the API server does not answer ({system_words(error)[:_DETAIL_CHARS]}): is it up, and do "
        "the credentials name its address?",
        retry_after_s=2.0,
    )


def refused_call(refusal: Refused) -> SandboxdError:
    """The error for a call that a server should not refuse."""
    mend = (
        ": does the account have the role of docs/kubernetes.md?" if refusal.status == 403 else ""
    )
    return SandboxdError(
        ErrorCode.BACKEND_UNAVAILABLE,
        f"the API server refused a call ({refusal.status}: {refusal.detail}){mend}",
        retry_after_s=2.0,
    )
