"""Makes single boxes, and opens the lines to their guests. Knows no stock and no queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import anyio
from anyio.abc import ByteStream

from sandboxd.backends.protocol import Backend, BoxOrder, BoxRef
from sandboxd.egress.lent import Lender
from sandboxd.errors import SandboxdError
from sandboxd.guest.client import Guest
from sandboxd.guest.line import GuestLost
from sandboxd.guest.messages import PROTOCOLS
from sandboxd.model.template import BoxSpec
from sandboxd.pool.setting_up import declare_ready, died_in_setup, set_up
from sandboxd.pool.stock import Box, DiaryEntry
from sandboxd.telemetry.metrics import Metrics
from sandboxd.wire.codes import ErrorCode

# A backstop: a backend bounds its own steps, but a large image may take long to come. One that
# takes longer still goes on coming, and the next make waits for it too.
_MAKE_S = 600.0
_LOOK_S = 5.0


class EarlyStarter(Protocol):
    """Starts kernels, or MCP servers, in boxes that nobody has leased yet."""

    async def start_all(self, guest: Guest, spec: BoxSpec) -> tuple[DiaryEntry, ...]:
        """Start what a spec names; all of it answers when this returns. A line for each.

        Raises `start_failed`, with fault task where it is the image's or the template's doing, and
        SANDBOX_LOST or GuestLost where the box is gone.
        """
        ...


@dataclass(frozen=True, slots=True)
class Equipment:
    """What it takes to prepare boxes before they are warm.

    lender: lends set-ups their way out; kernels, servers: start kernels and MCP servers. Without
    them there is none.
    """

    lender: Lender | None = None
    kernels: EarlyStarter | None = None
    servers: EarlyStarter | None = None


class Workshop:
    """One pool's. labels: what marks every box of this installation."""

    def __init__(
        self,
        backend: Backend,
        *,
        labels: Mapping[str, str],
        metrics: Metrics,
        equipment: Equipment,
    ) -> None:
        self._backend = backend
        self._equipment = equipment
        self._labels = labels
        self._metrics = metrics

    async def make(self, box: Box, spec: BoxSpec) -> float:
        """Make a box that is in the book already: it has `ref`, `guest` and `diary` then. Returns
        seconds, those of its set-up and of the start of its kernels among them.

        Raises as `Backend.make`, `set_up` and `EarlyStarter`, and `start_failed` when it takes too
        long. Cancelled: what there is of it is found at the next start.
        """
        marks = {"pool": box.pool, "fingerprint": box.fingerprint}
        order = BoxOrder(box_id=box.box_id, spec=spec, labels={**self._labels, **marks})
        began = anyio.current_time()
        try:
            with anyio.fail_after(_MAKE_S):
                box.ref = await self._backend.make(order)
        except TimeoutError as error:
            detail = f"no box within {_MAKE_S:.0f} s"
            raise SandboxdError(ErrorCode.START_FAILED, detail) from error
        box.guest = self.guest(box.ref, protocol=PROTOCOLS[-1])  # it is the one that we ship
        if spec.prepared:
            box.diary = await self._prepare(box.ref, box.guest, spec)
        took_s = anyio.current_time() - began
        self._metrics.make_seconds.labels(self._backend.name).observe(took_s)
        return took_s

    async def _prepare(self, ref: BoxRef, guest: Guest, spec: BoxSpec) -> tuple[DiaryEntry, ...]:
        diary: tuple[DiaryEntry, ...] = ()
        try:
            if spec.setup.commands:
                diary = await set_up(guest, spec.setup, lender=self._equipment.lender)
            if spec.kernels:
                diary += await _started_by(self._equipment.kernels, guest, spec)
            await declare_ready(guest)  # which forgets every command there was
            if spec.mcp_servers:
                diary += await _started_by(self._equipment.servers, guest, spec)
            return diary
        except (GuestLost, SandboxdError) as error:
            if isinstance(error, SandboxdError) and error.code is not ErrorCode.SANDBOX_LOST:
                raise
            with anyio.move_on_after(_LOOK_S):
                death = await self._backend.look(ref)
                if death is not None:
                    raise died_in_setup(death) from error
            raise SandboxdError(ErrorCode.START_FAILED, f"set-up: {error}") from error

    def guest(self, ref: BoxRef, *, protocol: int | None = None) -> Guest:
        """A line to the guest of a box; connects when it is used. protocol: as in Guest."""

        async def connect() -> ByteStream:
            return await self._backend.connect(ref)

        return Guest(connect, protocol=protocol)


async def _started_by(
    starter: EarlyStarter | None, guest: Guest, spec: BoxSpec
) -> tuple[DiaryEntry, ...]:
    if starter is None:
        detail = "there is nobody here who could start what is to run in warm sandboxes"
        raise SandboxdError(ErrorCode.NOT_SUPPORTED, detail)
    return await starter.start_all(guest, spec)
