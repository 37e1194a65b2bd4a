"""Pulls under way: one per image at a time, whoever asks; a few per registry; each remembered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
import structlog
from anyio import CapacityLimiter, to_thread
from anyio.abc import TaskGroup

from sandboxd.backends.docker.engine import Engine
from sandboxd.backends.docker.imaging.credentials import auth_header
from sandboxd.backends.docker.imaging.lanes import Lane, Lanes
from sandboxd.backends.docker.imaging.nouns import ImageSettings
from sandboxd.backends.docker.imaging.pulling import Pull, PullFailed
from sandboxd.backends.docker.imaging.verdicts import pull_failed
from sandboxd.backends.parts.pull_words import Cause, cause_of, retry_after_s
from sandboxd.errors import SandboxdError
from sandboxd.model.image import ImageName
from sandboxd.wire.codes import ErrorCode

log = structlog.get_logger(__name__)

_AT_ONCE = 16  # over all registries
_TELL_EVERY_S = 10.0
_PATIENCE_S = 120.0  # with a registry that wants fewer requests
_CREDENTIALS_S = 30.0  # a credential helper is a program that may hang
_MAX_FAILURES = 256  # remembered


@dataclass(slots=True, eq=False)
class _Errand:
    done: anyio.Event = field(default_factory=anyio.Event)
    error: SandboxdError | None = None
    pull: Pull | None = None  # None while it waits
    waits: str = "waits for its turn"


class Pulls:
    """Gets images. Its tasks are its owner's, so that a caller who goes away ends no pull."""

    def __init__(
        self,
        engine: Engine,
        settings: ImageSettings,
        tasks: TaskGroup,
        *,
        before: Callable[[], Awaitable[set[str]]],
        arrived: Callable[[ImageName, set[str]], Awaitable[None]],
    ) -> None:
        """before: the image ids that are here. arrived: called with what it said before a pull
        that went well, and before whoever waits is told.
        """
        self._engine = engine
        self._settings = settings
        self._tasks = tasks
        self._before = before
        self._arrived = arrived
        self._lanes = Lanes(wide=settings.pulls_per_registry)
        self._limiter = CapacityLimiter(_AT_ONCE)
        self._errands: dict[ImageName, _Errand] = {}
        self._failures: OrderedDict[ImageName, str] = OrderedDict()

    async def get(self, name: ImageName) -> None:
        """Pull an image, or wait for the pull of it that is under way.

        Raises `image_unavailable` (fault task: its registry says no; infra: it does not answer),
        `disk_full`, `backend_unavailable`. Cancelled: the pull goes on.
        """
        errand = self._errands.get(name)
        if errand is None:
            errand = self._errands[name] = _Errand()
            self._tasks.start_soon(self._run, name, errand, name=f"pull {name}")
        await errand.done.wait()
        if errand.error is not None:
            raise _again(errand.error)

    @property
    def coming(self) -> dict[ImageName, str]:
        """What is being pulled, or waits for its turn, and how far it is."""
        return {
            name: str(errand.pull.progress) if errand.pull else errand.waits
            for name, errand in self._errands.items()
        }

    @property
    def failures(self) -> dict[ImageName, str]:
        """The error of each image whose last pull failed; the latest are remembered."""
        return dict(self._failures)

    def forgive(self, name: ImageName) -> None:
        """An image is there, however it came."""
        self._failures.pop(name, None)

    async def _run(self, name: ImageName, errand: _Errand) -> None:
        errand.error = SandboxdError(
            ErrorCode.BACKEND_UNAVAILABLE, f"the pull of {name} was cut short: the daemon stops"
        )
        try:
            await self._arrived(name, await self._pull(name, errand))
            errand.error = None
            self.forgive(name)
        except SandboxdError as error:
            errand.error = error
            self._remember(name, error)
        finally:
            del self._errands[name]
            errand.done.set()

    def _remember(self, name: ImageName, error: SandboxdError) -> None:
        self._failures[name] = error.detail
        self._failures.move_to_end(name)
        if len(self._failures) > _MAX_FAILURES:
            self._failures.popitem(last=False)
        log.warning("image.pull_failed", image=str(name), fault=error.fault, error=error.detail)

    async def _pull(self, name: ImageName, errand: _Errand) -> set[str]:
        """Says which ids were here before."""
        began = anyio.current_time()
        async with self._lanes.on(name.registry) as lane:
            before = await self._before()
            give_up = anyio.current_time() + _PATIENCE_S
            while not await self._try(name, errand, lane, give_up):
                pass
        log.info("image.pulled", image=str(name), took_s=round(anyio.current_time() - began, 1))
        return before

    async def _try(self, name: ImageName, errand: _Errand, lane: Lane, give_up: float) -> bool:
        """One pull; False: again, once the lane is no longer quiet."""
        await self._wait_for_quiet(name, lane, give_up)
        try:
            await self._once(name, errand)
        except PullFailed as failure:
            cause = failure.cause or cause_of(failure.words)
            if cause is Cause.BUSY:
                pause = lane.refused(retry_after_s(failure.words))
                errand.waits = f"its registry asked for fewer requests: again in {pause:.0f} s"
                if anyio.current_time() + pause < give_up:
                    log.info("image.registry_busy", image=str(name), pause_s=round(pause, 1))
                    return False
                raise _too_busy(name, lane, failure.words) from None
            raise pull_failed(str(name), cause, failure.words) from None
        finally:
            errand.pull = None
        lane.answered()
        return True

    async def _wait_for_quiet(self, name: ImageName, lane: Lane, give_up: float) -> None:
        if lane.quiet_until > give_up:
            raise _too_busy(name, lane, "")
        await lane.quiet()

    async def _once(self, name: ImageName, errand: _Errand) -> None:
        auth = await self._auth(name)
        one = errand.pull = Pull(self._engine, name, auth=auth, stall_s=self._settings.stall_s)
        failure: PullFailed | SandboxdError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_tell, name, one, name=f"progress of {name}")
            try:
                async with self._limiter:
                    await one.run()
            except (PullFailed, SandboxdError) as error:  # a group would wrap it
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _auth(self, name: ImageName) -> str:
        try:
            with anyio.fail_after(_CREDENTIALS_S):
                return await to_thread.run_sync(
                    auth_header, name, self._settings.logins, abandon_on_cancel=True
                )
        except TimeoutError:
            words = "the docker configuration's credential helper does not answer"
            raise pull_failed(str(name), Cause.REGISTRY, words) from None


async def _tell(name: ImageName, one: Pull) -> None:
    while True:
        await anyio.sleep(_TELL_EVERY_S)
        log.info("image.pulling", image=str(name), progress=str(one.progress))


def _too_busy(name: ImageName, lane: Lane, words: str) -> SandboxdError:
    error = pull_failed(str(name), Cause.BUSY, words)
    error.retry_after_s = max(1.0, lane.quiet_until - anyio.current_time())
    return error


def _again(error: SandboxdError) -> SandboxdError:
    """The same failure for one more caller: an exception is raised once, as it keeps its trace."""
    return SandboxdError(
        error.code,
        error.detail,
        fault=error.fault,
        mask=error.mask,
        retry_after_s=error.retry_after_s,
        details=error.details,
    )
