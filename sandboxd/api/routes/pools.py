"""Templates and pools: what there is to lease, and how much of it is in stock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from sandboxd.api import render
from sandboxd.api.audited import about
from sandboxd.api.paging import Cursor, Limit, page
from sandboxd.api.schemas.operations import PoolBody, SweepBody
from sandboxd.api.services import here, services_of
from sandboxd.api.strict import StrictRoute
from sandboxd.errors import SandboxdError
from sandboxd.model.template import Template
from sandboxd.pool.warm_pool import WarmPool
from sandboxd.wire.codes import ErrorCode

router = APIRouter(prefix="/v1", tags=["pools"], route_class=StrictRoute)

T = TypeVar("T")


@router.get("/templates", operation_id="list_templates")
async def list_templates(request: Request, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """The templates, without their environment, which may hold secrets."""
    services = services_of(request)
    found, next_cursor = _in_order(services.templates, limit=limit, cursor=cursor)
    templates = [_template(template) for template in found]
    return render.answer({"templates": templates, "next_cursor": next_cursor})


@router.get("/pools", operation_id="list_pools")
async def list_pools(request: Request, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """The pools, with their stock and queue."""
    services = services_of(request)
    found, next_cursor = _in_order(services.house.pools, limit=limit, cursor=cursor)
    pools = [asdict(pool.status()) for pool in found]
    return render.answer({"pools": pools, "next_cursor": next_cursor})


@router.patch("/pools/{template}", operation_id="adjust_pool")
async def adjust_pool(
    request: Request,
    template: str,
    body: PoolBody,
) -> Response:
    """Change a pool until the configuration is read again."""
    services = services_of(request)
    pool = _pool(services.house.pools, template)
    changes = body.model_dump(exclude_none=True, exclude={"paused"})
    settings = replace(pool.settings, **changes)
    if settings.max > services.house.most:
        raise SandboxdError(
            ErrorCode.BAD_REQUEST,
            f"max: {settings.max} is over max_sandboxes {services.house.most}",
            details={"field": "max"},
        )
    if settings.ready > settings.max:
        raise SandboxdError(
            ErrorCode.BAD_REQUEST,
            f"ready: {settings.ready} is over the pool's max {settings.max}",
            details={"field": "ready"},
        )
    about(request, **body.model_dump(exclude_none=True))
    pool.adjust(settings, paused=pool.paused if body.paused is None else body.paused)
    return render.answer(asdict(pool.status()))


@router.post("/sweep", operation_id="sweep")
async def sweep(
    request: Request,
    body: SweepBody,
) -> Response:
    """Remove boxes that nobody holds; with `all` end every lease too, with reason `shutdown`."""
    services, caller = here(request)
    if body.all:
        if caller.rights != "operator":
            raise SandboxdError(
                ErrorCode.FORBIDDEN,
                "only the operator may end every lease: run `sandboxd sweep --all` beside it",
            )
        boxes = [box.box_id for pool in services.house.pools.values() for box in pool.stock]
        about(request, boxes=boxes, dry_run=body.dry_run, all=True)
        left = 0 if body.dry_run else await services.clear()
        return render.answer({"dry_run": body.dry_run, "boxes": boxes, "left": left})
    orphans = await services.sweeper.sweep(dry_run=body.dry_run)
    about(request, boxes=orphans, dry_run=body.dry_run)
    return render.answer({"dry_run": body.dry_run, "boxes": orphans, "left": 0})


def _in_order(
    named: Mapping[str, T], *, limit: int, cursor: str | None
) -> tuple[list[T], str | None]:
    """A page in the order of the configuration."""
    shown, next_cursor = page(
        enumerate(named.items()),
        key=lambda numbered: (-numbered[0], numbered[1][0]),
        limit=limit,
        cursor=cursor,
    )
    return [found for _, (_, found) in shown], next_cursor


def _pool(pools: dict[str, WarmPool], name: str) -> WarmPool:
    if name not in pools:
        raise SandboxdError(ErrorCode.NOT_FOUND, f"there is no pool {name!r}")
    return pools[name]


def _template(template: Template) -> dict[str, Any]:
    spec = template.spec
    return {
        "name": template.name,
        "image": spec.image,
        "resources": asdict(spec.resources),
        "network": render.network(spec.network),
        "runtime": spec.runtime,
        "workdir": template.workdir,
        "user": template.user,
        "capabilities": template.capabilities,
        "timeout_s": template.timeout_s,
        "max_timeout_s": template.max_timeout_s,
        "idle_timeout_s": template.idle_timeout_s,
        "pool": asdict(template.pool),
    }
