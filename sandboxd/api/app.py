"""The application: routes, errors, and the door in front of them. Nothing is built at import."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from sandboxd import __version__
from sandboxd.api import problems
from sandboxd.api.auth import Auth
from sandboxd.api.door import Door
from sandboxd.api.mcp import listing
from sandboxd.api.mcp.document import with_mcp
from sandboxd.api.mcp.entrance import McpEntrance
from sandboxd.api.ports.document import with_ports
from sandboxd.api.ports.entrance import Entrance
from sandboxd.api.routes import (
    attach,
    events,
    execs,
    files,
    groups,
    images,
    jupyter,
    kernels,
    pools,
    quota,
    readings,
    runs,
    sandboxes,
    shells,
    system,
    ways_out,
)
from sandboxd.api.services import Services
from sandboxd.api.shapes.document import with_problems
from sandboxd.telemetry.metrics import Metrics


def build_routes(metrics: Metrics, *, foreign: Sequence[APIRouter] = ()) -> FastAPI:
    """The routes alone, enough for `sandboxd openapi`. foreign: of other services' dialects."""
    app = FastAPI(
        title="sandboxd",
        version=__version__,
        description="A sandbox for every rollout.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    # Tried in this order for each request: the hot ones first.
    hot = (execs, sandboxes, files, shells, kernels, jupyter, attach, runs, groups)
    rest = (listing, readings, ways_out, events, pools, quota, images, system)
    routers = [module.router for module in (*hot, *rest)]
    routers += foreign
    problems.install(app, metrics, routes=[r for router in routers for r in router.routes])
    for router in routers:
        app.include_router(router)
    generate = app.openapi
    app.openapi = lambda: with_problems(with_mcp(with_ports(generate())))  # type: ignore[method-assign]
    return app


def build_app(
    services: Services, *, open_metrics: bool, foreign: Sequence[APIRouter] = ()
) -> ASGIApp:
    """The whole application for one daemon."""
    app = build_routes(services.metrics, foreign=foreign)
    app.state.services = services
    current: Callable[[], Auth] = lambda: services.auth  # noqa: E731 - replaced on SIGHUP
    entrance = McpEntrance(Entrance(app, services), services)
    return Door(entrance, auth=current, metrics=services.metrics, open_metrics=open_metrics)
