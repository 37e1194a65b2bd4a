"""Which MCP servers a sandbox has. What leads to them is no route: see `api.mcp`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from sandboxd.api import render
from sandboxd.api.services import here
from sandboxd.api.shapes.mcp_servers import McpServers
from sandboxd.api.shapes.parts import answers
from sandboxd.api.strict import StrictRoute
from sandboxd.model.mcp_server import OWN_SERVER, McpState, McpStatus

router = APIRouter(prefix="/v1", tags=["mcp"], route_class=StrictRoute)


@router.get(
    "/sandboxes/{sandbox_id}/mcp", operation_id="list_mcp_servers", responses=answers(McpServers)
)
async def list_mcp_servers(request: Request, sandbox_id: str) -> Response:
    """The MCP servers of the sandbox, in the order of their declaration. No use, for its clock."""
    services, caller = here(request)
    tenancy = services.desk.look_at(sandbox_id, owner=caller.owner)
    below = f"{services.base_url}/v1/sandboxes/{sandbox_id}/mcp"
    shown = [_shown(each, f"{below}/{each.name}") for each in await services.mcp.list(tenancy)]
    return render.answer({"mcp_servers": shown, "next_cursor": None})


@router.get("/mcp", operation_id="list_shared_mcp_servers", responses=answers(McpServers))
async def list_shared_mcp_servers(request: Request) -> Response:
    """The MCP servers that leases share, and the daemon's own."""
    services, _ = here(request)
    shared = [server.status() for server in services.mcp.shared.values()]
    own = McpStatus(
        name=OWN_SERVER, scope="shared", transport="http", state=McpState.RUNNING, replicas=0
    )
    below = f"{services.base_url}/v1/mcp"
    shown = [_shown(each, f"{below}/{each.name}") for each in (own, *shared)]
    return render.answer({"mcp_servers": shown, "next_cursor": None})


def _shown(noun: McpStatus, url: str) -> dict[str, object]:
    return {
        "name": noun.name,
        "scope": noun.scope,
        "transport": noun.transport,
        "state": noun.state,
        "restarts": noun.restarts,
        "sessions": noun.sessions,
        "replicas": noun.replicas,
        "url": url,
    }
