"""A way out for a box that nobody has leased yet: while its set-up runs, and no longer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import structlog

from sandboxd.egress.environment import PROXY_PORT, proxy_env
from sandboxd.egress.limits import WayOutLimits
from sandboxd.egress.outside import Outside
from sandboxd.egress.rules import Rules
from sandboxd.egress.way_out import PROXY, Policy, WayOut, Witness
from sandboxd.guest.client import Guest
from sandboxd.guest.ports import Listener
from sandboxd.model.template import Network
from sandboxd.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)


class Lender:
    """Lends ways out to boxes in the making."""

    def __init__(self, outside: Outside, *, limits: WayOutLimits, metrics: Metrics) -> None:
        self._outside = outside
        self._limits = limits
        self._metrics = metrics

    @asynccontextmanager
    async def lend(self, guest: Guest, network: Network) -> AsyncIterator[dict[str, str]]:
        """The variables by which commands find the proxy, while it is lent; none without a network.

        Raises GuestLost and what the guest refuses.
        """
        if network.kind == "none":
            yield {}
            return
        (listener,) = await guest.set_listeners([Listener(PROXY, PROXY_PORT)])
        way = WayOut(
            guest,
            policy=Policy(Rules.of(network)),
            outside=self._outside,
            limits=self._limits,
            metrics=self._metrics,
            witness=Witness(note=_note, used=_nobody_counts),
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(way.run, name="way-out-setup")
            yield proxy_env(listener.port, {})
            await guest.set_listeners([])
            tasks.cancel_scope.cancel()


def _note(event: str, **facts: object) -> None:
    log.info(event, during="setup", **facts)


def _nobody_counts(_at: float) -> None:
    return
