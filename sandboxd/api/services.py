"""The services a door is handed, and how a request finds them and its caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import anyio
from fastapi import Request

from sandboxd.api.auth import Auth, Principal
from sandboxd.api.tokens import Tokens
from sandboxd.backends.protocol import Capabilities
from sandboxd.clock import Clock
from sandboxd.execution.commands import Commands
from sandboxd.execution.files import Files
from sandboxd.execution.ports import Ports
from sandboxd.execution.shells import Shells
from sandboxd.kernels.kernels import Kernels
from sandboxd.leases.desk import Desk
from sandboxd.leases.quotas import Quotas
from sandboxd.leases.runs import Runs
from sandboxd.mcp.servers import McpServers
from sandboxd.model.template import Template
from sandboxd.pool.house import House
from sandboxd.pool.prefetcher import Prefetcher
from sandboxd.pool.sweeper import Sweeper
from sandboxd.telemetry.events import Events
from sandboxd.telemetry.metrics import Metrics


@dataclass(slots=True)
class Services:
    """One daemon's services. `templates` and `auth` are replaced when the configuration is read
    again; `ready` turns true once the leases of the last daemon are adopted; `stopping` is set as
    soon as the daemon is told to stop, so that whoever waits is answered.
    """

    desk: Desk
    house: House
    commands: Commands
    shells: Shells
    files: Files
    prefetcher: Prefetcher
    ports: Ports
    kernels: Kernels
    mcp: McpServers
    sweeper: Sweeper
    clear: Callable[[], Awaitable[int]]
    templates: Mapping[str, Template]
    auth: Auth
    tokens: Tokens
    clock: Clock
    metrics: Metrics
    events: Events
    runs: Runs
    quotas: Quotas
    backend: str
    capabilities: Capabilities
    base_url: str
    stopping: anyio.Event
    trusted_ports: frozenset[str] = frozenset()  # names of templates
    foreign_images: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # as `compat` has
    ready: bool = False


# Plain calls and no injected dependencies: those cost 0.1 ms a request on the hot path.


def services_of(request: Request) -> Services:
    """The services behind this door."""
    services: Services = request.app.state.services
    return services


def here(request: Request) -> tuple[Services, Principal]:
    """The services behind this door, and who is calling."""
    principal: Principal = request.scope["state"]["principal"]
    return services_of(request), principal


def request_id_of(request: Request) -> str:
    """The id that the request came with or was given."""
    request_id: str = request.scope["state"]["request_id"]
    return request_id
