"""Runs: a trainer's heartbeat, looked at and ended."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from sandboxd.api import render
from sandboxd.api.audited import about, name_of
from sandboxd.api.paging import Cursor, Limit, page
from sandboxd.api.schemas.runs import HeartbeatBody
from sandboxd.api.services import here
from sandboxd.api.shapes.leases import Released
from sandboxd.api.shapes.parts import answers
from sandboxd.api.shapes.runs import Run, Runs
from sandboxd.api.strict import StrictRoute
from sandboxd.model.ids import CALLER_ID_PATTERN
from sandboxd.model.run import RunState, RunStatus
from sandboxd.telemetry import audit

router = APIRouter(prefix="/v1/runs", tags=["runs"], route_class=StrictRoute)

RunId = Annotated[str, Path(pattern=CALLER_ID_PATTERN)]


@router.put("/{run_id}/heartbeat", operation_id="beat_run", responses=answers(Run))
async def beat_run(request: Request, run_id: RunId, body: HeartbeatBody) -> Response:
    """The run is heard of; the first time it begins. 409 once it is lost, until it is deleted."""
    services, caller = here(request)
    status, new = await services.runs.beat(run_id, ttl_s=body.ttl_s, owner=caller.owner or "")
    if new:
        audit.act("begin_run", who=name_of(caller), run_id=run_id, ttl_s=body.ttl_s)
    return render.answer(_shown(status))


@router.get("", operation_id="list_runs", responses=answers(Runs))
async def list_runs(
    request: Request,
    state: RunState = RunState.ACTIVE,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Runs of this key, newest first; only active ones unless a state is asked for."""
    services, caller = here(request)
    found, next_cursor = page(
        services.runs.select(owner=caller.owner, state=state),
        key=lambda run: (run.began_at, run.run_id),
        limit=limit,
        cursor=cursor,
    )
    runs = [_shown(services.runs.status(run)) for run in found]
    return render.answer({"runs": runs, "next_cursor": next_cursor})


@router.get("/{run_id}", operation_id="get_run", responses=answers(Run))
async def get_run(request: Request, run_id: RunId) -> Response:
    """One run. 404 for a name that never beat, whatever leases carry it."""
    services, caller = here(request)
    return render.answer(_shown(services.runs.find(run_id, owner=caller.owner)))


@router.delete("/{run_id}", operation_id="end_run", responses=answers(Released))
async def end_run(request: Request, run_id: RunId) -> Response:
    """Release all leases that name the run, and make its name free again. Success whether there is
    anything to end or not; where a lease could not be released the run stays as it is.
    """
    services, caller = here(request)
    with services.runs.ending(run_id, owner=caller.owner) as leases:
        released, failed = await services.desk.release_all(leases, owner=caller.owner)
        if not failed:
            await services.runs.forget(run_id, owner=caller.owner)
    about(request, sandbox_ids=released, failed=failed)
    return render.answer({"released": released, "failed": failed})


def _shown(status: RunStatus) -> dict[str, Any]:
    run = status.run
    return {
        "run_id": run.run_id,
        "state": run.state,
        "ttl_s": run.ttl_s,
        "began_at": run.began_at,
        "expires_at": status.expires_at,
        "leased": status.leased,
        "queued": status.queued,
        "ended": status.ended,
    }
