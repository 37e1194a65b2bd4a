"""Leases: granted, looked at, listed, renewed, released."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Query, Request
from pydantic_core import to_json
from starlette.responses import Response

from sandboxd.api import render
from sandboxd.api.audited import about
from sandboxd.api.orders import lease, wish_of
from sandboxd.api.paging import Cursor, Limit, page
from sandboxd.api.schemas.leases import GradingBody, LeaseBody, RenewBody, TokenBody
from sandboxd.api.services import Services, here
from sandboxd.api.shapes.leases import Released, Sandbox, Sandboxes, Token
from sandboxd.api.shapes.parts import answers, raw
from sandboxd.api.streams import waiting
from sandboxd.api.strict import StrictRoute
from sandboxd.api.tokens import Grant
from sandboxd.errors import SandboxdError
from sandboxd.leases.tenancy import Tenancy
from sandboxd.model.lease import Lease, LeaseState, Phase
from sandboxd.wire.codes import ErrorCode

router = APIRouter(prefix="/v1/sandboxes", tags=["sandboxes"], route_class=StrictRoute)

WaitS = Annotated[float, Query(ge=0, le=3600)]

# What an empty body stands for.
_MOST, _USUAL = RenewBody(), TokenBody()


@router.post(
    "", status_code=201, operation_id="lease_sandbox", responses=answers(Sandbox, 200, 201, 202)
)
async def lease_sandbox(
    request: Request,
    body: LeaseBody,
) -> Response:
    """Lease a sandbox: 201 when leased, 200 for a known idempotency key, 202 while it waits."""
    services, _ = here(request)
    tenancy, new = await lease(request, wish_of(body, services))
    waits = tenancy.shown().state in {LeaseState.QUEUED, LeaseState.MAKING}
    return render.answer(shown(tenancy, services), status=202 if waits else 201 if new else 200)


@router.get("", operation_id="list_sandboxes", responses=answers(Sandboxes))
async def list_sandboxes(
    request: Request,
    run_id: str | None = None,
    group_id: str | None = None,
    rollout_id: str | None = None,
    label: Annotated[list[str] | None, Query()] = None,
    state: LeaseState | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Sandboxes of this key, newest first; only live ones unless a state is asked for: what was
    released is not live, though its container may still be `ending`.
    """
    services, caller = here(request)
    where = _filter(run_id=run_id, group_id=group_id, rollout_id=rollout_id, labels=label)
    found = services.desk.book.select(owner=caller.owner, where=where)
    matching, next_cursor = page(
        (tenancy for tenancy in found if _in_state(tenancy, state)),
        key=lambda tenancy: (tenancy.lease.created_at, tenancy.lease.id),
        limit=limit,
        cursor=cursor,
    )
    sandboxes = [shown(tenancy, services) for tenancy in matching]
    return render.answer({"sandboxes": sandboxes, "next_cursor": next_cursor})


@router.delete("", operation_id="release_sandboxes", responses=answers(Released))
async def release_sandboxes(
    request: Request,
    run_id: str | None = None,
    group_id: str | None = None,
    label: Annotated[list[str] | None, Query()] = None,
) -> Response:
    """Release all that match; at least one filter must be given."""
    services, caller = here(request)
    if run_id is None and group_id is None and not label:
        raise SandboxdError(
            ErrorCode.BAD_REQUEST, "give run_id, group_id or label: releasing all needs a filter"
        )
    where = _filter(run_id=run_id, group_id=group_id, labels=label)
    found = services.desk.book.select(owner=caller.owner, where=where)
    released, failed = await services.desk.release_all(found, owner=caller.owner)
    about(request, sandbox_ids=released, failed=failed)
    return render.answer({"released": released, "failed": failed})


@router.get("/{sandbox_id}", operation_id="get_sandbox", responses=answers(Sandbox))
async def get_sandbox(request: Request, sandbox_id: str, wait_s: WaitS = 0) -> Response:
    """One sandbox; with `wait_s` once it is leased or ended, or that time has passed."""
    services, caller = here(request)
    tenancy = services.desk.find(sandbox_id, owner=caller.owner)
    if wait_s > 0 and not tenancy.settled.is_set():

        async def settled() -> None:
            with anyio.move_on_after(wait_s):
                await tenancy.settled.wait()

        await waiting(request, settled)
    return render.answer(shown(tenancy, services))


@router.delete("/{sandbox_id}", operation_id="release_sandbox", responses=answers(Sandbox))
async def release_sandbox(request: Request, sandbox_id: str, wait_s: WaitS = 0) -> Response:
    """Release: success the first time and again; with `wait_s` once the container is gone."""
    services, caller = here(request)
    await services.desk.release(sandbox_id, owner=caller.owner)
    if wait_s > 0:
        await waiting(
            request,
            lambda: services.desk.release(sandbox_id, owner=caller.owner, wait_s=wait_s),
        )
    tenancy = services.desk.find(sandbox_id, owner=caller.owner)
    return render.answer(shown(tenancy, services))


@router.post("/{sandbox_id}/renew", operation_id="renew_sandbox", responses=answers(Sandbox))
async def renew_sandbox(
    request: Request,
    sandbox_id: str,
    body: RenewBody = _MOST,
) -> Response:
    """Move the hard end."""
    services, caller = here(request)
    await services.desk.renew(sandbox_id, timeout_s=body.timeout_s, owner=caller.owner)
    return render.answer(shown(services.desk.find(sandbox_id, owner=caller.owner), services))


@router.post("/{sandbox_id}/grading", operation_id="begin_grading", responses=answers(Sandbox))
async def begin_grading(
    request: Request,
    sandbox_id: str,
    body: GradingBody,
) -> Response:
    """Start the grading phase early, once."""
    services, caller = here(request)
    tenancy = services.desk.look_at(sandbox_id, owner=caller.owner)
    if tenancy.lease.phase is Phase.GRADING:
        raise SandboxdError(
            ErrorCode.CONFLICT, "the grading phase has begun already", sandbox_id=sandbox_id
        )
    await services.desk.begin_grading(tenancy, for_s=body.timeout_s)
    return render.answer(shown(tenancy, services))


@router.post(
    "/{sandbox_id}/tokens",
    status_code=201,
    operation_id="mint_token",
    responses=answers(Token, 201),
)
async def mint_token(
    request: Request,
    sandbox_id: str,
    body: TokenBody = _USUAL,
) -> Response:
    """A token for this sandbox alone, as Bearer or in the path `/s/{token}/…`."""
    services, caller = here(request)
    services.desk.look_at(sandbox_id, owner=caller.owner)
    expires_at = services.clock.now() + body.ttl_s
    grant = Grant(lease_id=sandbox_id, rights=body.rights, expires_at=expires_at)
    about(request, rights=body.rights, expires_at=expires_at)
    token = services.tokens.mint(grant)
    url = f"{services.base_url}/s/{token}"
    return render.answer({"token": token, "url": url, "expires_at": expires_at}, status=201)


@router.get(
    "/{sandbox_id}/logs",
    operation_id="get_sandbox_logs",
    responses=raw("application/x-ndjson"),
    response_class=Response,
)
async def get_sandbox_logs(
    request: Request,
    sandbox_id: str,
) -> Response:
    """What happened to the sandbox, one JSON object a line."""
    services, caller = here(request)
    tenancy = services.desk.find(sandbox_id, owner=caller.owner)
    lines = b"".join(to_json(entry) + b"\n" for entry in tenancy.diary)
    return Response(lines, media_type="application/x-ndjson")


def shown(tenancy: Tenancy, services: Services) -> dict[str, Any]:
    """The public Sandbox of a tenancy."""
    lease = tenancy.shown()
    queue = None
    if lease.state in {LeaseState.QUEUED, LeaseState.MAKING} and tenancy.ticket is not None:
        position = tenancy.pool.position(tenancy.ticket)
        wait_s = tenancy.pool.expected_wait_s(position)
        queue = {"position": position, "expected_wait_s": wait_s}
    limits = {name: str(kind) for name, kind in services.capabilities.limits.items()}
    return render.sandbox(lease, limits=limits, queue=queue, proxy_port=tenancy.proxy_port)


def _in_state(tenancy: Tenancy, state: LeaseState | None) -> bool:
    lease = tenancy.shown()
    return lease.state is state if state is not None else not lease.over


def _filter(
    *,
    run_id: str | None = None,
    group_id: str | None = None,
    rollout_id: str | None = None,
    labels: list[str] | None = None,
) -> Callable[[Lease], bool]:
    wanted: list[tuple[str, str]] = []
    for label in labels or ():
        key, equals, value = label.partition("=")
        if not key or not equals:
            raise SandboxdError(ErrorCode.BAD_REQUEST, "label must be key=value")
        wanted.append((key, value))

    def matches(lease: Lease) -> bool:
        terms = lease.terms
        return (
            (run_id is None or terms.run_id == run_id)
            and (group_id is None or terms.group_id == group_id)
            and (rollout_id is None or terms.rollout_id == rollout_id)
            and all(terms.labels.get(key) == value for key, value in wanted)
        )

    return matches
