"""From what a body says to the nouns behind the doors, where more than one door needs it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fastapi import Request
from pydantic import BaseModel
from pydantic_core import to_json

from sandboxd.api.audited import about
from sandboxd.api.schemas.leases import ForwardBody, LeaseBody
from sandboxd.api.schemas.leases import Network as NetworkBody
from sandboxd.api.schemas.mcp_servers import McpServers
from sandboxd.api.services import Services, here
from sandboxd.api.streams import while_there
from sandboxd.execution.commands import shell_argv
from sandboxd.leases.tenancy import Tenancy
from sandboxd.leases.terms import LeaseOrder, LeaseWish, resolve
from sandboxd.model.claim import ClaimFile
from sandboxd.model.command import Command
from sandboxd.model.lease import LeaseState
from sandboxd.model.mcp_server import McpServer
from sandboxd.model.template import Network, Resources
from sandboxd.model.way_out import ForwardOrder

START_ID = "start"  # under which a lease's first command is found


def network_of(body: NetworkBody | None) -> Network | None:
    """What a sandbox may reach; None where nothing was said."""
    match body:
        case None:
            return None
        case "none" | "internet" as kind:
            return Network(kind=kind)
        case allowed:
            return Network(kind="allow", allow=tuple(allowed.allow))


def forward_orders(bodies: Mapping[int, ForwardBody]) -> dict[int, ForwardOrder]:
    """Forwards by their ports inside."""
    return {
        port: ForwardOrder(url=body.url, headers=dict(body.headers))
        for port, body in bodies.items()
    }


def order_of(wish: LeaseWish, services: Services) -> LeaseOrder:
    """A wish, resolved against its template. Raises as `resolve` does."""
    return resolve(
        wish,
        services.templates,
        direct=services.capabilities.direct_networks,
        shared=services.mcp.shared,
    )


def wish_of(body: LeaseBody, services: Services) -> LeaseWish:
    """What a lease is asked for."""
    return LeaseWish(
        template=body.template or "",
        image=body.image,
        resources=_resources(body, services),
        network=network_of(body.network),
        forwards=forward_orders(body.forwards),
        mcp_servers=_mcp_servers(body.mcp_servers),
        runtime=body.runtime,
        kernels=None if body.kernels is None else tuple(body.kernels),
        env=body.env,
        secrets=body.secrets,
        files=tuple(
            ClaimFile(path=path, data=file.data, mode=file.mode)
            for path, file in body.files.items()
        ),
        workdir=body.workdir,
        user=body.user,
        start=None if body.start is None else start_of(body.start),
        labels=body.labels,
        timeout_s=body.timeout_s,
        idle_timeout_s=body.idle_timeout_s,
        grading_s=body.grading_s,
        wait_timeout_s=body.wait_timeout_s,
        wait=body.wait,
        run_id=body.run_id,
        group_id=body.group_id,
        rollout_id=body.rollout_id,
        priority=body.priority,
        idempotency_key=body.idempotency_key,
        body_digest="" if body.idempotency_key is None else digest_of(body),
    )


def _mcp_servers(
    body: McpServers | None,
) -> tuple[str, ...] | tuple[McpServer, ...] | None:
    match body:
        case None:
            return None
        case list():
            return tuple(body)
        case declared:
            return tuple(each.server(name) for name, each in declared.items())


def start_of(cmd: Sequence[str] | str) -> Command:
    """What a lease runs from its beginning, as a command with an id of its own."""
    argv = shell_argv(cmd) if isinstance(cmd, str) else tuple(cmd)
    return Command(exec_id=START_ID, argv=argv)


async def grant(services: Services, wish: LeaseWish, *, owner: str | None) -> tuple[Tenancy, bool]:
    """A lease for what a caller wishes; says also whether it is new.

    Raises what `resolve` and `Granting.lease` raise.
    """
    order = order_of(wish, services)
    granted, new = await services.desk.granting.lease(order, owner=owner or "")
    tenancy = services.desk.find(granted.id, owner=owner)
    if new and granted.state is LeaseState.LEASED:
        services.mcp.expect(tenancy)
    return tenancy, new


async def lease(request: Request, wish: LeaseWish) -> tuple[Tenancy, bool]:
    """The same for the caller of a request. Given up when that goes away."""
    services, caller = here(request)
    tenancy, new = await while_there(request, lambda: grant(services, wish, owner=caller.owner))
    about(request, sandbox_id=tenancy.lease.id, new=new)
    return tenancy, new


def digest_of(body: BaseModel) -> str:
    """Tells a request that is sent again from another one under the same key."""
    return hashlib.sha256(to_json(body, bytes_mode="base64")).hexdigest()


def _resources(body: LeaseBody, services: Services) -> Resources | None:
    if body.resources is None:
        return None
    template = services.templates.get(body.template or "")
    start = template.spec.resources if template is not None else Resources()
    return replace(start, **body.resources.model_dump(exclude_none=True))
