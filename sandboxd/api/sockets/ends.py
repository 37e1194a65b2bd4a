"""What WebSockets of ours have in common once they are accepted: several parts run until the first
has a reason to end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect

from sandboxd.api.services import Services
from sandboxd.errors import SandboxdError

LEFT = 0  # never sent: the client went away by itself
_BROKEN = 1011


@dataclass(frozen=True, slots=True)
class Farewell:
    """How a WebSocket ended, by the code that it is closed with."""

    code: int
    reason: str = ""


Part = Callable[[], Awaitable[Farewell]]


async def first_end(parts: Mapping[str, Part]) -> Farewell:
    """Run them, by their names, until the first has ended. Raises what that raised."""
    ends: list[Farewell | Exception] = []
    async with anyio.create_task_group() as tasks:

        async def until_end(part: Part) -> None:
            try:
                ends.append(await part())
            except WebSocketDisconnect:
                ends.append(Farewell(LEFT))
            except Exception as error:  # noqa: BLE001 - raised below, outside the group
                ends.append(error)
            tasks.cancel_scope.cancel()

        for name, part in parts.items():
            tasks.start_soon(until_end, part, name=name)
    if isinstance(ends[0], Exception):
        raise ends[0]
    return ends[0]


async def until_gone(socket: WebSocket) -> Farewell:
    """Until the client's connection is gone."""
    await socket.scope["state"]["gone"].wait()
    return Farewell(LEFT)


def close_code(services: Services, error: SandboxdError) -> int:
    """What an error closes with: 4000 and its status, 1011 for 500. It is counted."""
    services.metrics.faults.labels(error.fault, error.code).inc()
    status = error.status or 500
    return _BROKEN if status == 500 else 4000 + status
