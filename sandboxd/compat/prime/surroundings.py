"""What stands around a sandbox: what it may reach, its ports outside; and what is not here at all,
answered in a way that changes nothing in how a client behaves.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from sandboxd.api.audited import about
from sandboxd.api.render import answer
from sandboxd.api.services import Services, here
from sandboxd.api.strict import StrictRoute
from sandboxd.api.tokens import Grant
from sandboxd.compat.prime.bodies import EgressBody, ExposeBody
from sandboxd.compat.prime.shown import when
from sandboxd.compat.prime.wishes import lists_of, network_of, not_here
from sandboxd.errors import SandboxdError
from sandboxd.leases.tenancy import Tenancy
from sandboxd.leases.ways_out import Wiring
from sandboxd.wire.codes import ErrorCode

# Before the routes of one sandbox: to those, these paths were ids.
missing = APIRouter(prefix="/api/v1", include_in_schema=False)
router = APIRouter(
    prefix="/api/v1/sandbox/{sandbox_id}", route_class=StrictRoute, include_in_schema=False
)

_MOST_PORTS = 64


@router.get("/egress-policy", operation_id="prime_get_egress")
async def get_egress(request: Request, sandbox_id: str) -> Response:
    """What it may reach."""
    services, caller = here(request)
    return answer(_policy(services.desk.find(sandbox_id, owner=caller.owner)))


@router.put("/egress-policy", operation_id="prime_set_egress")
async def set_egress(request: Request, sandbox_id: str, body: EgressBody) -> Response:
    """Change what it may reach; in force when this is answered."""
    services, caller = here(request)
    network = network_of(body)
    tenancy = services.desk.look_at(sandbox_id, owner=caller.owner)
    about(request, network=None if network is None else network.kind)
    await services.desk.rewire(tenancy, Wiring(network=network))
    return answer(_policy(tenancy))


def _policy(tenancy: Tenancy) -> dict[str, Any]:
    """Their clients wait until the wanted generation is the applied one: here it always is."""
    rewired = sum(entry["event"] == "rewired" for entry in tenancy.diary)
    return {
        "policy": lists_of(tenancy.lease.terms.network),
        "generation": rewired + 1,
        "applied_generation": rewired + 1,
        "applied": True,
    }


class Exposures:
    """Ports that were exposed, by sandbox, for as long as this daemon runs: the addresses that were
    given out are good without this list, until their sandbox ends.
    """

    def __init__(self) -> None:
        self._ports: dict[str, dict[int, dict[str, Any]]] = {}
        self.every = APIRouter(prefix="/api/v1/sandbox", include_in_schema=False)
        self.every.add_api_route(
            "/expose/all", self.list_all, methods=["GET"], operation_id="prime_exposures"
        )
        self.router = APIRouter(
            prefix="/api/v1/sandbox/{sandbox_id}/expose",
            route_class=StrictRoute,
            include_in_schema=False,
        )
        for path, call, method in (
            ("", self.expose, "POST"),
            ("", self.list_exposed, "GET"),
            ("/{exposure_id}", self.unexpose, "DELETE"),
        ):
            self.router.add_api_route(
                path, call, methods=[method], operation_id=f"prime_{call.__name__}"
            )

    async def expose(self, request: Request, sandbox_id: str, body: ExposeBody) -> Response:
        """An address for a port inside, for HTTP and WebSockets, without a header."""
        services, caller = here(request)
        tenancy = services.desk.look_at(sandbox_id, owner=caller.owner)
        if body.protocol == "TCP":
            raise not_here("protocol", "ports are reached by HTTP and WebSockets alone")
        self._forget_the_dead(services)
        ports = self._ports.setdefault(sandbox_id, {})
        if len(ports) >= _MOST_PORTS and body.port not in ports:
            raise SandboxdError(ErrorCode.CONFLICT, f"{_MOST_PORTS} ports are exposed already")
        ports[body.port] = _exposure(tenancy, body, services)
        return answer(ports[body.port])

    async def list_exposed(self, request: Request, sandbox_id: str) -> Response:
        """Those of one sandbox."""
        services, caller = here(request)
        services.desk.find(sandbox_id, owner=caller.owner)
        return answer({"exposures": list(self._ports.get(sandbox_id, {}).values())})

    async def list_all(self, request: Request) -> Response:
        """Those of all sandboxes of this caller."""
        services, caller = here(request)
        self._forget_the_dead(services)
        mine = {
            tenancy.lease.id
            for tenancy in services.desk.book.select(
                owner=caller.owner, where=lambda found: found.id in self._ports
            )
        }
        told = [each for found in mine for each in self._ports[found].values()]
        return answer({"exposures": told})

    async def unexpose(self, request: Request, sandbox_id: str, exposure_id: str) -> Response:
        """Take a port off the list."""
        services, caller = here(request)
        services.desk.find(sandbox_id, owner=caller.owner)
        port = int(exposure_id) if exposure_id.isdecimal() else 0
        if self._ports.get(sandbox_id, {}).pop(port, None) is None:
            raise SandboxdError(ErrorCode.NOT_FOUND, "there is no such exposure")
        return answer({"exposure_id": exposure_id})

    def _forget_the_dead(self, services: Services) -> None:
        live = {tenancy.lease.id for tenancy in services.desk.book.live()}
        self._ports = {found: ports for found, ports in self._ports.items() if found in live}


def _exposure(tenancy: Tenancy, body: ExposeBody, services: Services) -> dict[str, Any]:
    now = services.clock.now()
    grant = Grant(
        lease_id=tenancy.lease.id, rights="use", expires_at=tenancy.lease.expires_at or now
    )
    token = services.tokens.mint(grant)
    return {
        "exposure_id": str(body.port),
        "sandbox_id": tenancy.lease.id,
        "port": body.port,
        "name": body.name,
        "url": f"{services.base_url}/s/{token}/ports/{body.port}/",
        "tls_socket": "",
        "protocol": body.protocol,
        "created_at": when(now),
    }


_CHECKPOINTS = "there are no checkpoints here: keep what matters by downloading it"
_NOT_HERE = {
    "/sandbox/checkpoints:batchGet": _CHECKPOINTS,
    "/sandbox/checkpoints/{rest:path}": _CHECKPOINTS,
    "/sandbox/{sandbox_id}/checkpoints": _CHECKPOINTS,
    "/sandbox/{sandbox_id}/checkpoints/{rest:path}": _CHECKPOINTS,
    "/sandbox/volumes": "there are no volumes here: give a template `mounts`, or upload files",
    "/sandbox/volumes/{rest:path}": "there are no volumes here: give a template `mounts`",
    "/sandbox/{sandbox_id}/volumes/{rest:path}": "there are no volumes here",
    "/sandbox/networks": "sandboxes here do not reach each other",
    "/sandbox/networks/{rest:path}": "sandboxes here do not reach each other",
    "/sandbox/{sandbox_id}/ssh-session": "there is no SSH here: use `sandboxd shell ID`",
    "/sandbox/{sandbox_id}/ssh-session/{rest:path}": "there is no SSH here",
    "/images": "images are templates here, or any that the engine can pull: see `sandboxd pools`",
    "/images/{rest:path}": "images are not built here: build them with the engine",
}


async def _refuse(request: Request) -> Response:
    """501 and why: a 404 would have clients fall back on other ways for good."""
    path: str = request.scope["route"].path
    text = _NOT_HERE[path.removeprefix("/api/v1")]
    raise SandboxdError(ErrorCode.NOT_SUPPORTED, text)


for _path in _NOT_HERE:
    missing.add_api_route(_path, _refuse, methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
