"""What every way to a guest owes the rest of this backend: by socket, or by TCP. Knows neither."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from anyio.abc import ByteStream

from sandboxd.backends.docker.records import BoxRecord, Whereabouts
from sandboxd.backends.docker.watching.living import LivingBox
from sandboxd.model.template import Mount

Facts = Mapping[str, Any]  # what the engine says of one container


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """How a guest is to listen, for the call that creates its container.

    arguments: for its `serve`. publish: the address of the engine's machine on which its TCP port
    `port` is to be had; empty: on none.
    """

    arguments: tuple[str, ...]
    mounts: tuple[Mount, ...] = ()
    port: int = 0
    publish: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """A living box. pidfd: of its first process, the receiver's to close; None if out of sight."""

    pidfd: int | None = None


class Reach(Protocol):
    """One way to guests, the same for all boxes of a daemon."""

    def door(self, box_id: str) -> Door:
        """How the guest of that box is to listen."""
        ...

    async def furnish(self, box_id: str, container_id: str) -> None:
        """Put into a container that was just created what is not bound into it.

        Raises EngineRefused.
        """
        ...

    async def where(self, facts: Facts) -> Whereabouts:
        """Where the guest of a running container is; nowhere if it has ended."""
        ...

    async def hold(self, record: BoxRecord) -> Hold | None:
        """Whether the box lives; None: it does not. Raises `backend_unavailable`: cannot tell."""
        ...

    async def wait_for_guest(self, record: BoxRecord) -> None:
        """Until the guest answers; the deadline is the caller's.

        Raises EndedEarly, and `start_failed`.
        """
        ...

    async def connect(self, box: LivingBox) -> ByteStream:
        """A stream to the guest of a living box, proven to be the guest's.

        Raises `sandbox_lost`, and `backend_unavailable` where the box lives out of reach.
        """
        ...
