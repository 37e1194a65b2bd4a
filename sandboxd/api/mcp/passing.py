"""Requests for a server that speaks HTTP inside: passed on as they flow, as to any port."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import structlog
from starlette.types import Scope, Send

from sandboxd.api.mcp.bodies import Whole
from sandboxd.api.ports.asked import asked_of
from sandboxd.api.ports.exchange import CallerLeft, Cut, Exchange
from sandboxd.api.ports.place import Place
from sandboxd.api.services import Services
from sandboxd.errors import SandboxdError
from sandboxd.leases.tenancy import Tenancy
from sandboxd.mcp.live import LiveServer, call_facts
from sandboxd.mcp.messages import Message, is_request

log = structlog.get_logger(__name__)

_LOOKED_INTO_BYTES = 1 << 16  # larger messages are logged without what they ask for


async def pass_on(
    services: Services, server: LiveServer, rest: str, scope: Scope, whole: Whole, send: Send
) -> None:
    """Pass one request on. Raises as the door to ports does, and what became of the server."""
    lease = server.tenancy.lease
    place = _place(services, server, rest, scope)
    await server.until_listening(services.ports, owner=lease.owner)
    try:
        async with services.ports.open(lease.id, place.port, owner=lease.owner) as port:
            trusted = port.template in services.trusted_ports
            asked = asked_of(scope, trusted=trusted, is_ours=services.auth.knows)
            began_at = anyio.current_time()
            try:
                with services.metrics.mcp_calls.labels(server.label, "passed_on").time():
                    await Exchange(
                        port, place, asked, receive=whole, send=send, stopping=services.stopping
                    ).run()
            finally:
                _note(server, whole, took_s=anyio.current_time() - began_at)
    except CallerLeft:
        pass
    except SandboxdError as error:
        if error.details.get("reason") not in {"refused", "closed"}:
            raise
        raise await server.why_it_broke(error) from error
    except Cut:
        scope["state"]["cut"]()


def _note(server: LiveServer, whole: Whole, *, took_s: float) -> None:
    """One line of the log for a call, as there is one for each call on stdio."""
    if (said := _request_in(whole)) is not None:
        server.note_call(said, outcome="passed_on", took_s=took_s)


@contextmanager
def noted(tenancy: Tenancy, name: str, whole: Whole) -> Iterator[None]:
    """A call to a server that the lease shares: a line of the log with that lease's own ids."""
    began_at = anyio.current_time()
    try:
        yield
    finally:
        if (said := _request_in(whole)) is not None:
            took_s = anyio.current_time() - began_at
            log.info("mcp.shared_call", **call_facts(tenancy, name, said, took_s=took_s))


def _request_in(whole: Whole) -> Message | None:
    said = whole.message if whole.size <= _LOOKED_INTO_BYTES else None
    return said if isinstance(said, dict) and is_request(said) else None


def _place(services: Services, server: LiveServer, rest: str, scope: Scope) -> Place:
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    below = scope["state"].get("below")
    lease = server.tenancy.lease.id
    return Place(
        sandbox_id=lease,
        port=server.server.port,
        path=server.server.path + rest,
        prefix=f"{below or '/v1/sandboxes/' + lease}/mcp/{server.server.name}",
        scheme="https" if services.base_url.startswith("https") else scope["scheme"],
        host=host.decode("latin-1"),
        by_token=below is not None,
    )
