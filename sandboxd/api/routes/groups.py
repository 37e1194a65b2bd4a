"""Groups: several sandboxes leased at once, all or none."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sandboxd.api import render
from sandboxd.api.audited import about
from sandboxd.api.orders import digest_of, order_of, wish_of
from sandboxd.api.routes.sandboxes import shown
from sandboxd.api.schemas.groups import GroupBody
from sandboxd.api.services import Services, here
from sandboxd.api.shapes.groups import Group, ReleasedGroup
from sandboxd.api.shapes.parts import answers
from sandboxd.api.streams import waiting, while_there
from sandboxd.api.strict import StrictRoute
from sandboxd.leases.tenancy import Tenancy
from sandboxd.leases.terms import LeaseOrder
from sandboxd.model.ids import new_id

router = APIRouter(prefix="/v1/groups", tags=["groups"], route_class=StrictRoute)

WaitS = Annotated[float, Query(ge=0, le=3600)]


@router.post(
    "", status_code=201, operation_id="lease_group", responses=answers(Group, 200, 201, 202)
)
async def lease_group(request: Request, body: GroupBody) -> Response:
    """Lease `count` sandboxes, all or none: 201 when leased, 200 for a known group, 202 while it
    waits.
    """
    services, caller = here(request)
    order = _order(body, services)
    kept = body.group_id is not None or body.idempotency_key is not None
    tenancies, new = await while_there(
        request,
        lambda: services.desk.granting.groups.lease(
            order,
            owner=caller.owner or "",
            rollout_ids=body.rollout_ids or [body.rollout_id] * body.count,
            kept=kept,
        ),
    )
    waits = any(not tenancy.settled.is_set() for tenancy in tenancies)
    about(
        request,
        group_id=order.terms.group_id,
        sandbox_ids=[tenancy.lease.id for tenancy in tenancies],
        new=new,
    )
    status = 202 if waits else 201 if new else 200
    if status == 201:
        for tenancy in tenancies:
            services.mcp.expect(tenancy)
    return render.answer(_shown(tenancies, services), status=status)


@router.get("/{group_id}", operation_id="get_group", responses=answers(Group))
async def get_group(request: Request, group_id: str, wait_s: WaitS = 0) -> Response:
    """The sandboxes of a group; with `wait_s` once all are leased or ended, or that time passed."""
    services, caller = here(request)
    tenancies = services.desk.granting.groups.find(group_id, owner=caller.owner)
    if wait_s > 0 and not all(tenancy.settled.is_set() for tenancy in tenancies):

        async def settled() -> None:
            with anyio.move_on_after(wait_s):
                for tenancy in tenancies:
                    await tenancy.settled.wait()

        await waiting(request, settled)
    return render.answer(_shown(tenancies, services))


@router.delete("/{group_id}", operation_id="release_group", responses=answers(ReleasedGroup))
async def release_group(request: Request, group_id: str) -> Response:
    """Release all sandboxes of a group: success the first time and again."""
    services, caller = here(request)
    tenancies = services.desk.granting.groups.find(group_id, owner=caller.owner)
    released, failed = await services.desk.release_all(tenancies, owner=caller.owner)
    about(request, sandbox_ids=released, failed=failed)
    return render.answer({"group_id": group_id, "released": released, "failed": failed})


def _order(body: GroupBody, services: Services) -> LeaseOrder:
    order = order_of(wish_of(body, services), services)
    terms = replace(
        order.terms,
        group_id=_name(body),
        idempotency_key=None,  # it names the group, no sandbox of it
        body_digest=digest_of(body),
    )
    return replace(order, terms=terms)


def _name(body: GroupBody) -> str:
    if body.group_id is not None:
        return body.group_id
    if body.idempotency_key is not None:  # found again after a restart too
        return f"grp-{hashlib.sha256(body.idempotency_key.encode()).hexdigest()[:32]}"
    return new_id("grp")


def _shown(tenancies: Sequence[Tenancy], services: Services) -> dict[str, Any]:
    return {
        "group_id": tenancies[0].lease.terms.group_id,
        "sandboxes": [shown(tenancy, services) for tenancy in tenancies],
    }
