"""Images: which there are, and having them ready before their first sandbox."""

from __future__ import annotations

from typing import Annotated

import anyio
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sandboxd.api import render
from sandboxd.api.audited import about
from sandboxd.api.paging import Cursor, Limit, page
from sandboxd.api.schemas.operations import PrefetchBody
from sandboxd.api.services import Services, services_of
from sandboxd.api.shapes.operations import Images, Prefetched
from sandboxd.api.shapes.parts import answers
from sandboxd.api.streams import waiting
from sandboxd.api.strict import StrictRoute
from sandboxd.backends.protocol import Image, ImageState
from sandboxd.leases.admissible import check_image

router = APIRouter(prefix="/v1/images", tags=["images"], route_class=StrictRoute)


@router.get("", operation_id="list_images", responses=answers(Images))
async def list_images(request: Request, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """Images that sandboxes are made of, that templates name, that are coming or failed to come;
    those used last first.
    """
    found = await services_of(request).prefetcher.list_images()
    shown, next_cursor = page(
        found, key=lambda image: (image.used_at or 0.0, image.reference), limit=limit, cursor=cursor
    )
    images = [render.image(image) for image in shown]
    return render.answer({"images": images, "next_cursor": next_cursor})


@router.post("/prefetch", operation_id="prefetch_images", responses=answers(Prefetched, 200, 202))
async def prefetch_images(
    request: Request,
    body: PrefetchBody,
    wait_s: Annotated[float, Query(ge=0, le=3600)] = 0,
) -> Response:
    """Have images ready: 200 once each is here or has failed to come, 202 while some are coming.

    Those that are coming go on after the answer; asking again tells how far they are.
    """
    services = services_of(request)
    await _check(services, body.images)
    prefetcher = services.prefetcher
    prefetcher.begin(body.images)

    about(request, images=body.images)

    async def wait() -> list[Image]:
        with anyio.move_on_after(wait_s):
            await prefetcher.wait(body.images)
        return prefetcher.states(body.images)

    states = await waiting(request, wait) if wait_s else prefetcher.states(body.images)
    coming = any(image.state is ImageState.PULLING for image in states)
    images = [render.image(image) for image in states]
    return render.answer({"images": images}, status=202 if coming else 200)


async def _check(services: Services, references: list[str]) -> None:
    """Raises `forbidden` for what a lease could not name either."""
    pools = services.house.pools.values()
    templates = [pool.template.spec for pool in pools if not pool.retired]
    for reference in references:
        await check_image(reference, templates=templates, capabilities=services.capabilities)
