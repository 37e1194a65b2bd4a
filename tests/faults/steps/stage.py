"""A daemon that can be told at which step to die, and what must be true once it is back."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio
from anyio import to_thread

from sandboxd_client import AsyncSandbox, AsyncSandboxd, SandboxdError
from tests.faults.account import free_port
from tests.faults.steps.program import HURRY, SIGNPOST
from tests.faults.yards import LocalYard
from tests.support.service import Service

T = TypeVar("T")

_REACH_S = 30.0
_QUIET_S = 60.0


class Signpost:
    """Says to the daemon what to do at which step: once, and then no more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reached, self._onwards = path.with_suffix(".reached"), path.with_suffix(".onwards")

    def put(self, step: str, *, passes: int = 0, act: str = "die") -> None:
        """At `before|after|item Class.method`, once passed so often: `die`, or `stay` there."""
        for path in (self._reached, self._onwards):
            path.unlink(missing_ok=True)
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps({"step": step, "passes": passes, "act": act}))
        fresh.replace(self.path)

    def remove(self) -> None:
        """Nothing is to happen any more."""
        self.path.unlink(missing_ok=True)

    @property
    def stands(self) -> bool:
        """Whether the step has not been reached yet."""
        return self.path.exists()

    def await_arrival(self) -> None:
        """Wait until the daemon stands still at the step."""
        deadline = time.monotonic() + _REACH_S
        while not self._reached.exists():
            assert time.monotonic() < deadline, "the step was never reached"
            time.sleep(0.005)

    def let_go(self) -> None:
        """Let it go on."""
        self._onwards.touch()


class StagedService(Service):
    """The same daemon with a signpost. The steps that it passes are those of `program`."""

    def __init__(self, folder: Path, *, backend: str, config: str) -> None:
        super().__init__(folder, backend=backend, config=config, port=free_port())
        self.signpost = Signpost(folder / "signpost")
        self.environ[SIGNPOST] = str(self.signpost.path)

    def command(self, verb: str, *extra: str) -> list[str]:
        """By our program where it is to serve."""
        words = super().command(verb, *extra)
        if verb == "serve":
            words[words.index("sandboxd")] = "tests.faults.steps.program"
        return words

    def await_death(self) -> None:
        """Wait until the daemon has killed itself at its step."""
        deadline = time.monotonic() + _REACH_S
        while self.runs:
            where = "not reached" if self.signpost.stands else "reached"
            assert time.monotonic() < deadline, f"it did not die: its step was {where}"
            time.sleep(0.005)
        assert self._wait() == -9, self.log.read_text(errors="replace")

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Daemons that are started in it forget what ended a second ago."""
        file = self.signpost.path.with_suffix(HURRY)
        file.touch()
        try:
            yield
        finally:
            file.unlink()

    def start_and_die(self) -> None:
        """Start it with a step on its way up: it dies before it listens."""
        with suppress(AssertionError):
            self.start()
        self.await_death()


@dataclass
class Stage:
    """One such service, and the checks after each act. boxes: those that exist, by their ids.

    ready: how much stock there is when it is at rest.
    """

    service: StagedService
    boxes: Callable[[], set[str]]
    ready: int

    async def die_during(
        self, act: Callable[[AsyncSandboxd], Awaitable[T]], step: str, *, passes: int = 0
    ) -> T:
        """What the act comes to, for a caller who goes on asking while the daemon dies at that step
        and is started again.
        """
        self.service.signpost.put(step, passes=passes)
        results: list[T] = []

        async def caller(client: AsyncSandboxd) -> None:
            results.append(await act(client))

        async with (
            AsyncSandboxd(url=self.service.url) as client,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(caller, client)
            await to_thread.run_sync(self.service.await_death)
            await to_thread.run_sync(self.service.start)
        return results[0]

    async def upset_during(
        self,
        act: Callable[[AsyncSandboxd], Awaitable[T]],
        step: str,
        upset: Callable[[], None],
        *,
        passes: int = 0,
    ) -> T | SandboxdError:
        """What the act comes to, or the error that it ends with, where something else is upset just
        while the daemon is at that step. upset: blocks.
        """
        self.service.signpost.put(step, passes=passes, act="stay")
        results: list[T | SandboxdError] = []

        async def caller(client: AsyncSandboxd) -> None:
            try:
                results.append(await act(client))
            except SandboxdError as error:
                results.append(error)

        async with (
            AsyncSandboxd(url=self.service.url) as client,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(caller, client)
            await to_thread.run_sync(self.service.signpost.await_arrival)
            await to_thread.run_sync(upset)
            self.service.signpost.let_go()
        return results[0]

    async def sandbox(self, **wish: Any) -> str:
        """Lease one that is not given back; its id."""
        async with AsyncSandboxd(url=self.service.url) as client:
            return (await client.lease("python", **wish)).id

    async def use(self, sandbox_id: str, act: Callable[[AsyncSandbox], Awaitable[T]]) -> T:
        """Do something with a sandbox."""
        async with AsyncSandboxd(url=self.service.url) as client:
            return await act(client.sandbox(sandbox_id))

    async def stocked(self) -> None:
        """Wait until there is as much stock as there should be."""
        async with AsyncSandboxd(url=self.service.url) as client:
            with anyio.fail_after(_QUIET_S):
                while (await client.pools())[0].ready < self.ready:  # noqa: ASYNC110 - nothing tells
                    await anyio.sleep(0.05)

    async def settle(self, *, held: int | None = 0) -> None:
        """Release what is leased: as many as they should be, if that can be told. Then nothing may
        be left but stock, in the daemon's books and outside of them.
        """
        async with AsyncSandboxd(url=self.service.url) as client:
            for info in (found := await client.sandboxes()):
                await client.sandbox(info.id).release()
            assert held is None or len(found) == held, found
            with anyio.fail_after(_QUIET_S):
                while left := await self._left(client):  # noqa: ASYNC110 - nothing tells
                    await anyio.sleep(0.05)
            assert not left
        log = self.service.log.read_text(errors="replace")
        assert "Traceback" not in log, log

    async def _left(self, client: AsyncSandboxd) -> list[str]:
        (pool,) = await client.pools()
        counts = (pool.ready, pool.making, pool.leased, pool.disposing)
        left = [] if counts == (self.ready, 0, 0, 0) else [f"the pool is not at rest: {pool}"]
        boxes = await to_thread.run_sync(self.boxes)
        return left if len(boxes) == self.ready else [*left, f"there are boxes: {boxes}"]


@contextmanager
def local_stage(folder: Path, *, config: str) -> Iterator[Stage]:
    """A stage on bubblewrap, with one box in stock."""
    folder.chmod(0o711)
    with staged(folder, backend="local", config=config) as service:
        yield Stage(service, boxes=lambda: LocalYard().box_ids(service), ready=1)


@contextmanager
def staged(folder: Path, *, backend: str, config: str) -> Iterator[StagedService]:
    """A started one; nothing of it is left at the end."""
    opened = StagedService(folder, backend=backend, config=config)
    try:
        opened.start()
        yield opened
    finally:
        opened.signpost.remove()
        opened.end()
