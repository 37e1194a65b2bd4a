"""What happens here, as server-sent events, for whoever follows."""

from __future__ import annotations

from contextlib import ExitStack
from functools import lru_cache
from typing import Annotated

import anyio
from fastapi import APIRouter, Header, Query, Request
from pydantic_core import to_json
from starlette.responses import Response

from sandboxd.api.schemas.fields import CallerId
from sandboxd.api.services import here
from sandboxd.api.shapes.runs import FOLLOWED
from sandboxd.api.streams import Emit, Flow, StartBody, until_stopped
from sandboxd.api.strict import StrictRoute
from sandboxd.errors import SandboxdError
from sandboxd.telemetry.events import Event, Follower
from sandboxd.wire.codes import ErrorCode

router = APIRouter(prefix="/v1/events", tags=["events"], route_class=StrictRoute)

EventId = Annotated[str | None, Query(max_length=64)]
LastEventId = Annotated[str | None, Header(max_length=64)]

_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}
_KEEPALIVE_S = 15.0
_TAKES_NOTHING_S = 30.0
_REST_S = (
    0.05  # what happens meanwhile goes out at once: hundreds who follow must not fill the loop
)


@router.get("", operation_id="follow_events", responses=FOLLOWED, response_class=Response)
async def follow_events(
    request: Request,
    run_id: CallerId | None = None,
    after: EventId = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Events as they happen, for as long as the caller reads; with `Last-Event-ID` or `after` those
    that were missed first, or a `gap` where they are no longer known. An hour is kept.
    """
    services, caller = here(request)
    events, seen = services.events, after or last_event_id or None

    async def source(start: StartBody, emit: Emit) -> None:
        with ExitStack() as stack:  # entered before the head is sent: a refusal is a problem
            following = events.follow(owner=caller.owner, run_id=run_id, after=seen)
            follower = stack.enter_context(following)
            await start(200, _HEADERS)
            if seen is None:
                await emit(f"id: {follower.place}\n\n".encode())
            await until_stopped(request, lambda: _pour(follower, emit))

    return Flow(source)


async def _pour(follower: Follower, emit: Emit) -> None:
    """Send what happens, until cancelled. Raises `timeout` for a reader who takes nothing."""
    while True:
        batch: list[Event] = []
        with anyio.move_on_after(_KEEPALIVE_S):
            batch = await follower.batch()
        # A quiet follower, too, comes back with a place that is still kept.
        quiet = f": keepalive\nid: {follower.place}\n\n".encode()
        with anyio.move_on_after(_TAKES_NOTHING_S) as patience:
            await emit(b"".join(map(_rendered, batch)) or quiet)
        if patience.cancelled_caught:
            raise SandboxdError(
                ErrorCode.TIMEOUT, f"the reader took nothing for {_TAKES_NOTHING_S:g} s"
            )
        await anyio.sleep(_REST_S)


@lru_cache(maxsize=4096)
def _rendered(event: Event) -> bytes:
    """An event as it travels: the same for all who follow."""
    data = {"at": event.at, "run_id": event.run_id, **event.facts}
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (
        event.id.encode(),
        event.type.encode(),
        to_json(data),
    )
