"""What a leased sandbox may reach: its network, and its forwards, each to one address outside."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from sandboxd.api import render
from sandboxd.api.audited import about
from sandboxd.api.orders import forward_orders, network_of
from sandboxd.api.routes.sandboxes import shown
from sandboxd.api.schemas.leases import ForwardsBody, NetworkBody
from sandboxd.api.services import here
from sandboxd.api.shapes.leases import Forwards, Sandbox
from sandboxd.api.shapes.parts import answers
from sandboxd.api.strict import StrictRoute
from sandboxd.errors import SandboxdError
from sandboxd.leases.tenancy import Tenancy
from sandboxd.leases.ways_out import Wiring
from sandboxd.wire.codes import ErrorCode

router = APIRouter(prefix="/v1/sandboxes", tags=["ways out"], route_class=StrictRoute)

PortInside = Annotated[int, Path(ge=1, le=65535)]


@router.put("/{sandbox_id}/network", operation_id="set_network", responses=answers(Sandbox))
async def set_network(request: Request, sandbox_id: str, body: NetworkBody) -> Response:
    """Another network for a leased sandbox. Connections that it does not allow are closed."""
    services, caller = here(request)
    tenancy = services.desk.look_at(sandbox_id, owner=caller.owner)
    network = network_of(body.network)
    about(request, network=network.kind if network is not None else None)
    await services.desk.rewire(tenancy, Wiring(network=network))
    return render.answer(shown(tenancy, services))


@router.post(
    "/{sandbox_id}/forwards",
    status_code=201,
    operation_id="add_forwards",
    responses=answers(Forwards, 201),
)
async def add_forwards(request: Request, sandbox_id: str, body: ForwardsBody) -> Response:
    """Forwards beside those there are; one with the same port takes its place."""
    services, caller = here(request)
    tenancy = services.desk.look_at(sandbox_id, owner=caller.owner)
    about(request, ports=sorted(body.forwards))
    await services.desk.rewire(tenancy, Wiring(add=forward_orders(body.forwards)))
    return render.answer(_forwards(tenancy), status=201)


@router.get("/{sandbox_id}/forwards", operation_id="list_forwards", responses=answers(Forwards))
async def list_forwards(request: Request, sandbox_id: str) -> Response:
    """All forwards, by port. Of their headers only the names are shown."""
    services, caller = here(request)
    return render.answer(_forwards(services.desk.look_at(sandbox_id, owner=caller.owner)))


@router.delete(
    "/{sandbox_id}/forwards/{port}",
    operation_id="remove_forward",
    status_code=204,
    response_class=Response,
)
async def remove_forward(request: Request, sandbox_id: str, port: PortInside) -> Response:
    """End a forward and the connections through it."""
    services, caller = here(request)
    tenancy = services.desk.look_at(sandbox_id, owner=caller.owner)
    if all(forward.port != port for forward in tenancy.lease.terms.forwards):
        raise SandboxdError(
            ErrorCode.NOT_FOUND, f"port {port} is no forward", sandbox_id=sandbox_id
        )
    await services.desk.rewire(tenancy, Wiring(remove=frozenset({port})))
    return Response(status_code=204)


def _forwards(tenancy: Tenancy) -> dict[str, Any]:
    known = tenancy.forward_headers
    forwards = [
        render.forward(forward, ready=not forward.header_names or forward.port in known)
        for forward in tenancy.lease.terms.forwards
    ]
    return {"forwards": forwards, "next_cursor": None}
