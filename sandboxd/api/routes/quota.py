"""What a key may hold, and holds."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request
from starlette.responses import Response

from sandboxd.api import render
from sandboxd.api.services import here
from sandboxd.api.shapes.operations import QuotaState
from sandboxd.api.shapes.parts import answers
from sandboxd.api.strict import StrictRoute

router = APIRouter(tags=["system"], route_class=StrictRoute)


@router.get("/v1/quota", operation_id="get_quota", responses=answers(QuotaState))
async def get_quota(request: Request) -> Response:
    """The limits and the use of the key that asks; never another's."""
    services, caller = here(request)
    owner, quotas = caller.owner or "", services.quotas
    return render.answer(
        {
            "key": owner,
            "limits": asdict(quotas.of(owner)),
            "used": asdict(quotas.held(owner)),
            "creates_left": quotas.creates_left(owner),
        }
    )
