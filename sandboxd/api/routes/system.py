"""The daemon itself: health, readiness, metrics, version."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from sandboxd import __version__
from sandboxd.api import render
from sandboxd.api.services import services_of
from sandboxd.api.shapes.operations import Version
from sandboxd.api.shapes.parts import answers, raw
from sandboxd.errors import SandboxdError
from sandboxd.guest.messages import PROTOCOLS
from sandboxd.model.run import RunState
from sandboxd.wire.codes import ErrorCode

router = APIRouter(tags=["system"])


@router.get("/healthz", operation_id="get_health")
async def get_health() -> Response:
    """The process answers."""
    return render.answer({"status": "ok"})


@router.get("/readyz", operation_id="get_readiness")
async def get_readiness(request: Request) -> Response:
    """Leases are granted: 200, or 503 while it starts or shuts down."""
    services = services_of(request)
    if services.desk.closing:
        raise SandboxdError(ErrorCode.SHUTTING_DOWN, "shutting down", retry_after_s=2.0)
    if not services.ready:
        raise SandboxdError(ErrorCode.BACKEND_UNAVAILABLE, "starting", retry_after_s=1.0)
    return render.answer({"status": "ready"})


@router.get(
    "/metrics", operation_id="get_metrics", responses=raw("text/plain"), response_class=Response
)
async def get_metrics(request: Request) -> Response:
    """Prometheus metrics."""
    services = services_of(request)
    metrics = services.metrics
    for pool in services.house.pools.values():
        status = pool.status()
        for state in ("ready", "making", "leased", "disposing"):
            metrics.sandboxes.labels(status.template, state).set(getattr(status, state))
        metrics.queue_length.labels(status.template).set(status.queued)
    for run_state in RunState:
        metrics.runs.labels(run_state).set(services.runs.count(run_state))
    return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/version", operation_id="get_version", responses=answers(Version))
async def get_version(request: Request) -> Response:
    """Versions, the backend and what it can do here."""
    services = services_of(request)
    can = services.capabilities
    return render.answer(
        {
            "version": __version__,
            "api": "v1",
            "guest_protocols": PROTOCOLS,
            "backend": services.backend,
            "capabilities": {
                "networks": sorted(can.all_networks),
                "runtimes": sorted(can.runtimes),
                "images": can.images,
                "other_users": can.other_users,
                "gpu": can.gpu,
                "oom_evidence": can.oom_evidence,
                "notes": can.notes,
            },
            "limits": {name: str(kind) for name, kind in can.limits.items()},
        }
    )
