"""The services a door is handed, and how a request finds them and its caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from sandboxd.api.auth import Auth, Principal
from sandboxd.api.tokens import Tokens
from sandboxd.backends.protocol import Capabilities
from sandboxd.clock import Clock
from sandboxd.execution.commands import Commands
from sandboxd.execution.files import Files
from sandboxd.execution.shells import Shells
from sandboxd.leases.desk import Desk
from sandboxd.model.template import Template
from sandboxd.pool.sweeper import Sweeper
from sandboxd.pool.warm_pool import House
from sandboxd.telemetry.metrics import Metrics


@dataclass(slots=True)
class Services:
    """One daemon's services. `templates` and `auth` are replaced when the configuration is read
    again; `ready` turns true once the leases of the last daemon are adopted.
    """

    desk: Desk
    house: House
    commands: Commands
    shells: Shells
    files: Files
    sweeper: Sweeper
    clear: Callable[[], Awaitable[int]]
    templates: Mapping[str, Template]
    auth: Auth
    tokens: Tokens
    clock: Clock
    metrics: Metrics
    backend: str
    capabilities: Capabilities
    base_url: str
    ready: bool = False


# Coroutines, because FastAPI sends plain functions to a thread, and this is the hot path.


async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def _caller(request: Request) -> Principal:
    principal: Principal = request.scope["state"]["principal"]
    return principal


async def _request_id(request: Request) -> str:
    request_id: str = request.scope["state"]["request_id"]
    return request_id


Using = Annotated[Services, Depends(_services)]
Caller = Annotated[Principal, Depends(_caller)]
RequestId = Annotated[str, Depends(_request_id)]
