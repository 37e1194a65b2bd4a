"""What an engine tells by itself: a stream of events, taken up again whenever it breaks.

Each time it begins, and every few seconds, all containers of ours are listed as well: what was
missed in between, or was never told, is seen then. Judges no death.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import anyio
import structlog
from anyio import CapacityLimiter, from_thread, to_thread
from docker import APIClient
from docker.types import CancellableStream

from sandboxd.backends.docker.engine import Engine, EngineRefused, translated
from sandboxd.backends.docker.labels import BOX, owned_by
from sandboxd.backends.docker.watching.living import LivingBox, Roster
from sandboxd.errors import SandboxdError

log = structlog.get_logger(__name__)

_ROUND_S = 10.0
_LIST_S = 20.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_DYING_S = 5.0  # what a process may take that the engine says is dead
_KINDS = ["die", "kill", "destroy"]
_Event = dict[str, Any]


class EventWatch:
    """Hears one engine, for as long as `run` runs."""

    def __init__(self, engine: Engine, roster: Callable[[], Roster], *, installation: str) -> None:
        """roster: asked for when it is needed; it and this look at each other."""
        self._engine = engine.lane(2)
        self._roster = roster
        self._filters: dict[str, Any] = {
            **owned_by(installation),
            "type": ["container"],
            "event": _KINDS,
        }
        self._installation = installation
        self._limiter = CapacityLimiter(1)
        self._flows = False

    @property
    def flows(self) -> bool:
        """Whether events are heard at this moment."""
        return self._flows

    async def run(self) -> None:
        """Until cancelled. An engine that does not answer is waited for."""
        pause = _FIRST_PAUSE_S
        while True:
            began = anyio.current_time()
            try:
                await self._hear()
                log.warning("engine.events.ended")
            except (SandboxdError, EngineRefused) as error:
                log.warning("engine.events.lost", error=str(error))
            if anyio.current_time() - began > _LONGEST_PAUSE_S:
                pause = _FIRST_PAUSE_S
            await anyio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    async def _hear(self) -> None:
        """One stream to its end. Raises as engine calls do."""
        stream = _Stream(self._engine.api, self._filters)
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:

            def opened() -> None:
                self._flows = True
                tasks.start_soon(self._go_rounds, stream, name="engine rounds")

            try:
                await to_thread.run_sync(
                    lambda: stream.read(opened, self._take),
                    limiter=self._limiter,
                    abandon_on_cancel=True,
                )
            except (SandboxdError, EngineRefused) as error:
                failure = error  # which the group would wrap
            finally:
                self._flows = False
                stream.close()
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def _take(self, event: _Event) -> None:
        """Note one event."""
        attributes = event.get("Actor", {}).get("Attributes", {})
        box = self._roster().get(str(attributes.get(BOX, "")))
        if box is None or event.get("id") != box.record.container_id:
            return
        match event.get("Action"):
            case "kill":
                signal = str(attributes.get("signal", ""))
                box.word.asked(int(signal) if signal.isdigit() else 0)
            case "die":
                box.word.dead.set()
            case "destroy":
                box.word.removed = True
                box.word.dead.set()
            case _:
                pass

    async def _go_rounds(self, stream: _Stream) -> None:
        """Look at every box, again and again. A list that fails breaks the stream too."""
        try:
            while True:
                with anyio.fail_after(_LIST_S):
                    await self._go_round()
                await anyio.sleep(_ROUND_S)
        except (SandboxdError, EngineRefused, TimeoutError) as error:
            log.warning("engine.round.failed", error=str(error) or "timed out")
            stream.close()

    async def _go_round(self) -> None:
        boxes = self._roster().living()
        containers = await self._engine.call(
            self._engine.api.containers, filters=owned_by(self._installation)
        )
        running = {str(container["Id"]) for container in containers}
        await _settle(box for box in boxes if box.record.container_id not in running)


async def _settle(boxes: Iterable[LivingBox]) -> None:
    """The engine takes these for dead. So they are, or become so: it no longer holds them."""
    left = list(boxes)
    for box in left:
        box.word.dead.set()
    with anyio.move_on_after(_DYING_S):
        for box in left:
            await box.gone.wait()
    for box in left:
        box.kill()


class _Stream:
    """One stream of events. `close` may be called from another thread than `read`."""

    def __init__(self, api: APIClient, filters: dict[str, Any]) -> None:
        self._api = api
        self._filters = filters
        self._events: CancellableStream[_Event] | None = None
        self._closed = False

    def read(self, opened: Callable[[], None], take: Callable[[_Event], None]) -> None:
        """To its end, calling back on the loop. Blocking; raises as engine calls do."""
        translated(self._read, opened, take)

    def _read(self, opened: Callable[[], None], take: Callable[[_Event], None]) -> None:
        self._events = self._api.events(decode=True, filters=self._filters)
        if self._closed:
            self._events.close()
            return
        from_thread.run_sync(opened)
        for event in self._events:
            from_thread.run_sync(take, event)

    def close(self) -> None:
        """End the reading, wherever it is."""
        self._closed = True
        if self._events is not None:
            self._events.close()
