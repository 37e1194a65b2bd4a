"""What a sandbox uses now."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from sandboxd.api import render
from sandboxd.api.services import here
from sandboxd.api.shapes.leases import Readings
from sandboxd.api.shapes.parts import answers
from sandboxd.api.strict import StrictRoute

router = APIRouter(prefix="/v1/sandboxes", tags=["sandboxes"], route_class=StrictRoute)


@router.get("/{sandbox_id}/readings", operation_id="read_sandbox", responses=answers(Readings))
async def read_sandbox(request: Request, sandbox_id: str) -> Response:
    """Processor time, memory, processes and running commands, measured inside. Is no use."""
    services, caller = here(request)
    readings, running = await services.commands.readings(sandbox_id, owner=caller.owner)
    return render.answer(
        {
            "cpu_s": readings.cpu_s,
            "memory_bytes": readings.memory_bytes,
            "memory_peak_bytes": readings.memory_peak_bytes,
            "memory_limit_bytes": readings.memory_limit_bytes,
            "pids": readings.pids,
            "disk_free_bytes": readings.disk_free_bytes,
            "load_1m": readings.load_1m,
            "execs_running": running,
        }
    )
