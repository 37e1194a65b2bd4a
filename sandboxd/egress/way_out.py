"""The way out of one sandbox: takes the connections that its guest hands over, and serves each.

Knows a guest and a policy, but neither leases nor boxes: who opens a way out says what to note.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import structlog
from anyio.abc import TaskGroup

from sandboxd.egress.forwarding import Forwarding, OpenForward
from sandboxd.egress.gate import Gate
from sandboxd.egress.http_side import Left
from sandboxd.egress.limits import WayOutLimits
from sandboxd.egress.outside import Outside
from sandboxd.egress.passage import BROKEN, Passage, Traffic
from sandboxd.egress.proxy import Proxy
from sandboxd.egress.rules import Rules
from sandboxd.errors import SandboxdError
from sandboxd.guest.client import Guest
from sandboxd.guest.line import GuestLost
from sandboxd.guest.ports import GuestStream
from sandboxd.telemetry.metrics import Metrics
from sandboxd.token_bucket import TokenBucket

log = structlog.get_logger(__name__)

PROXY = "proxy"  # the name of its listener

_WAITING = 2  # accepts that wait at the guest; each is armed again as soon as it has taken one
_AGAIN_S, _AGAIN_MOST_S = 0.05, 5.0  # a guest that did not answer is asked again
_TOLD_AT_ONCE, _TOLD_PER_S = 20, 0.2  # refusals that are noted one by one; the rest are counted


@dataclass(frozen=True, slots=True)
class Policy:
    """What a sandbox may reach: by the proxy, and by forwards, by the names of their listeners."""

    rules: Rules
    forwards: dict[str, OpenForward] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Witness:
    """Who hears of it. note: an event with facts, for people. used: when bytes have moved."""

    note: Callable[..., None]
    used: Callable[[float], None]


class WayOut:
    """See the module. Changed synchronously; `run` owns every connection."""

    def __init__(
        self,
        guest: Guest,
        *,
        policy: Policy,
        outside: Outside,
        limits: WayOutLimits,
        metrics: Metrics,
        witness: Witness,
        traffic: Traffic | None = None,
    ) -> None:
        self.traffic = traffic or Traffic()
        self._guest = guest
        self._policy = policy
        self._limits = limits
        self._metrics = metrics
        self._in, self._out = (metrics.way_out_bytes.labels(way) for way in ("in", "out"))
        self._witness = witness
        self._life = anyio.CancelScope()
        self._open: set[Passage] = set()
        self._opening = TokenBucket(limits.opens_per_s, at_once=limits.connections)
        self._telling = TokenBucket(_TOLD_PER_S, at_once=_TOLD_AT_ONCE)
        self._untold = 0
        self._gate = Gate(outside, limits=limits, rules=lambda: self._policy.rules)
        self._proxy = Proxy(self._gate, limits=limits, refused=self._refused)
        self._forwarding = Forwarding(self._gate, outside, limits=limits, refused=self._refused)

    @property
    def policy(self) -> Policy:
        """What it may reach now."""
        return self._policy

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._open)

    def change(self, policy: Policy) -> None:
        """Another policy, from now on: connections that it does not allow are closed."""
        self._policy = policy
        for passage in list(self._open):
            if not self._fits(passage):
                passage.scope.cancel()

    def close(self) -> None:
        """Close everything and end `run`, at once. Idempotent; also before `run` begins."""
        self._life.cancel()

    async def run(self) -> None:
        """Serve until closed. A guest that does not answer is asked again and again."""
        with self._life:
            async with anyio.create_task_group() as tasks:
                for number in range(_WAITING):
                    tasks.start_soon(self._take, tasks, name=f"way-out-take-{number}")
                await self._close_idle()

    async def _take(self, tasks: TaskGroup) -> None:
        again_s = _AGAIN_S
        while True:
            await self._opening.turn()
            try:
                name, stream = await self._guest.accept()
            except (GuestLost, SandboxdError, OSError) as error:
                log.debug("way_out.silent", error=str(error))
                await anyio.sleep(again_s)
                again_s = min(again_s * 2, _AGAIN_MOST_S)
                continue
            again_s = _AGAIN_S
            tasks.start_soon(self._serve, name, stream, name=f"way-out-{name}")

    async def _serve(self, name: str, stream: GuestStream) -> None:
        passage = Passage(stream, name=name, moved=self._moved)
        full = len(self._open) >= self._limits.connections
        if full and len(self._open) >= 2 * self._limits.connections:
            await anyio.aclose_forcefully(stream)  # not even a word for who floods us
            return
        self._open.add(passage)
        try:
            with passage.scope, suppress(Left, *BROKEN):
                if full or self._spent:
                    await self._turn_away(passage)
                else:
                    await self._pass(passage)
        except Exception:
            # What is sent to us here is hostile; no flaw of ours in reading it may end the daemon.
            log.exception("way_out.broke", listener=name)
        finally:
            self._open.discard(passage)
            await anyio.aclose_forcefully(stream)

    async def _pass(self, passage: Passage) -> None:
        if passage.name == PROXY:
            self._metrics.way_out_connections.labels("proxy").inc()
            await self._proxy.serve(passage)
        elif (forward := self._policy.forwards.get(passage.name)) is not None:
            self._metrics.way_out_connections.labels("forward").inc()
            await self._forwarding.serve(passage, forward)

    async def _turn_away(self, passage: Passage) -> None:
        if self._spent:
            text = f"this sandbox has used up the {self._limits.total_bytes} bytes it may pass"
        else:
            text = f"{self._limits.connections} connections of this sandbox are open: close some"
        self._refused(text)
        if passage.name == PROXY:
            await self._proxy.turn_away(passage, text)

    @property
    def _spent(self) -> bool:
        most = self._limits.total_bytes
        return most > 0 and self.traffic.in_bytes + self.traffic.out_bytes > most

    def _moved(self, in_bytes: int, out_bytes: int, at: float) -> None:
        if in_bytes:
            self.traffic.in_bytes += in_bytes
            self._in.inc(in_bytes)
        if out_bytes:
            self.traffic.out_bytes += out_bytes
            self._out.inc(out_bytes)
        self._witness.used(at)
        if self._spent:
            for passage in list(self._open):
                passage.scope.cancel()

    def _refused(self, text: str) -> None:
        """Note it, unless so many were noted that they would drive all else out of the diary."""
        self._metrics.way_out_connections.labels("refused").inc()
        if self._telling.take() > 0:
            self._untold += 1
            return
        facts: dict[str, Any] = {"detail": text}
        if self._untold:
            facts["more"], self._untold = self._untold, 0
        self._witness.note("way_out.refused", **facts)

    def _fits(self, passage: Passage) -> bool:
        if passage.name == PROXY:
            return self._gate.still_fits(passage)
        forward = self._policy.forwards.get(passage.name)
        return forward is not None and passage.target in {None, forward.target}

    async def _close_idle(self) -> None:
        idle_s = self._limits.idle_s
        while True:
            now = anyio.current_time()
            for passage in list(self._open):
                if passage.used_at + idle_s <= now:
                    passage.scope.cancel()
            oldest = min((p.used_at for p in self._open), default=now)
            # One that comes meanwhile is due no earlier than a whole time later.
            await anyio.sleep(max(0.01, min(oldest, now) + idle_s - now))
