"""The images of the docker backend: found, pulled, checked, counted, and dropped for room."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import anyio
import structlog
from anyio.abc import TaskGroup

from sandboxd.backends.docker.engine import Engine
from sandboxd.backends.docker.imaging.budget import Keep, to_drop, whole
from sandboxd.backends.docker.imaging.ledger import Ledger
from sandboxd.backends.docker.imaging.nouns import ImageFacts, ImageSettings
from sandboxd.backends.docker.imaging.pulls import Pulls
from sandboxd.backends.docker.imaging.shelf import OnShelf, Shelf
from sandboxd.backends.docker.imaging.verdicts import unfit
from sandboxd.backends.protocol import Image, ImageState, Wanted
from sandboxd.clock import Clock, SystemClock
from sandboxd.errors import SandboxdError
from sandboxd.model.image import ImageName, image_name, is_image_id
from sandboxd.model.template import Pull

log = structlog.get_logger(__name__)

_TIDY_EVERY_S = 3600.0
_LAST_SAVE_S = 2.0


class DockerImages:
    """Implements the seam's `Images`. Enter it by `open_images`, which owns its tasks."""

    def __init__(
        self, engine: Engine, settings: ImageSettings, tasks: TaskGroup, *, clock: Clock
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._shelf = Shelf(engine, installation=settings.installation)
        self._ledger = Ledger(settings.directory / "images.json")
        self._pulls = Pulls(engine, settings, tasks, before=self._shelf.ids, arrived=self._arrived)
        self._makes: Counter[str] = Counter()  # by image id: makes under way
        self._dropping: dict[str, anyio.Event] = {}
        self._wanted: Callable[[], Mapping[str, Wanted]] = dict
        self._tell: Callable[[str], None] = lambda _: None
        self._tidy = anyio.Event()
        # One tidying at a time: two would count the same excess, and drop twice as much.
        self._tidying = anyio.Lock()

    def wanted_by(self, templates: Callable[[], Mapping[str, Wanted]]) -> None:
        """See the protocol."""
        self._wanted = templates

    def when_pulled(self, call: Callable[[str], None]) -> None:
        """See the protocol."""
        self._tell = call

    async def ensure(self, reference: str, *, pull: Pull) -> ImageFacts:
        """Have an image here that this engine can run.

        Raises `image_unavailable` (fault task: it does not exist, may not be read or does not fit;
        infra: its registry does not answer), `disk_full`, `backend_unavailable`. Cancelled: a pull
        that was begun goes on.
        """
        name = _named(reference)
        if pull == "always" and name is not None:
            await self._pulls.get(name)
        facts = await self._shelf.find(str(name or reference))
        if facts is None:
            facts = await self._fetch(reference, name, pull)
        await self._check_platform(reference, facts)
        self._ledger.note(facts.image_id, str(name or reference), at=self._clock.now())
        if name is not None:
            self._pulls.forgive(name)
        return facts

    @asynccontextmanager
    async def using(self, reference: str, *, pull: Pull) -> AsyncIterator[ImageFacts]:
        """`ensure`, and the image stays while the block runs: for a make, until its container is.

        From then on the container itself keeps its image.
        """
        facts = await self.ensure(reference, pull=pull)
        while facts.image_id in self._dropping:
            await self._dropping[facts.image_id].wait()
            facts = await self.ensure(reference, pull=pull)
        self._ledger.used(facts.image_id, at=self._clock.now())
        self._makes[facts.image_id] += 1
        try:
            yield facts
        finally:
            self._makes[facts.image_id] -= 1
            if not self._makes[facts.image_id]:
                del self._makes[facts.image_id]

    async def prefetch(self, reference: str) -> Image:
        """Have an image here before its first box; raises as `ensure`."""
        facts = await self.ensure(reference, pull="missing")
        users = await self._shelf.users()
        return _present(reference, facts, self._used_at(facts.image_id), users.ours)

    async def list_images(self) -> list[Image]:
        """What our boxes were made of or templates name, and what is coming or failed to come."""
        found = {
            str(name): Image(reference=str(name), state=ImageState.FAILED, error=error)
            for name, error in self._pulls.failures.items()
        }
        for name, progress in self._pulls.coming.items():
            coming = Image(reference=str(name), state=ImageState.PULLING, progress=progress)
            found[str(name)] = coming
        users = await self._shelf.users()
        for known in self._known_names() - found.keys():
            facts = await self._shelf.find(known)
            if facts is not None:
                used_at = self._used_at(facts.image_id)
                found[known] = _present(known, facts, used_at, users.ours)
        return [found[name] for name in sorted(found)]

    async def tidy(self) -> list[str]:
        """Drop what is longest unused until what we pulled is within its budget; says which ids.

        Never what a container or a make uses, what a pool keeps stock of, what somebody else
        pulled or named. Raises `backend_unavailable`.
        """
        async with self._tidying:
            known = self._ledger.entries()  # before we look: what comes meanwhile is not gone
            shelf = {image.image_id: image for image in await self._shelf.images()}
            for entry in known:
                if entry.image_id not in shelf:
                    self._ledger.forget(entry.image_id)
            over = await self._over_budget(shelf)
            dropped = [image_id for image_id in over if await self._drop(image_id)]
            await self._ledger.save()
            return dropped

    async def run(self) -> None:
        """Keep to the budget: after each pull, and hourly."""
        while True:
            try:
                await self.tidy()
            except SandboxdError as error:
                log.warning("image.not_tidied", error=error.detail)
            with anyio.move_on_after(_TIDY_EVERY_S):
                await self._tidy.wait()
            self._tidy = anyio.Event()

    async def load(self) -> None:
        """Read what the last daemon knew."""
        await self._ledger.load()

    async def save(self) -> None:
        """Write down what the next daemon needs to know."""
        await self._ledger.save()

    async def _fetch(self, reference: str, name: ImageName | None, pull: Pull) -> ImageFacts:
        if name is None:
            raise unfit(reference, "the engine has no image of this id, and ids cannot be pulled")
        if pull == "never":
            raise unfit(
                str(name), 'the engine does not have it, and `pull = "never"`: load it, or pull it'
            )
        if pull == "missing":
            await self._pulls.get(name)
        facts = await self._shelf.find(str(name))
        if facts is None:
            raise unfit(str(name), "it was pulled, and removed again by somebody else")
        return facts

    async def _check_platform(self, reference: str, facts: ImageFacts) -> None:
        ours, its = await self._shelf.platform(), (facts.os, facts.architecture)
        if all(its) and all(ours) and its != ours:
            raise unfit(
                reference, f"it is made for {'/'.join(its)}, and this engine is {'/'.join(ours)}"
            )

    async def _arrived(self, name: ImageName, before: set[str]) -> None:
        facts = await self._shelf.find(str(name))
        if facts is not None:
            new = facts.image_id not in before
            self._ledger.note(facts.image_id, str(name), at=self._clock.now(), pulled=new)
            if new:
                self._tell(str(name))
            await self._ledger.save()
        self._tidy.set()

    async def _over_budget(self, shelf: Mapping[str, OnShelf]) -> list[str]:
        if not self._settings.disk_mb:
            return []
        users = await self._shelf.users()
        stocked = (whole(name) for name, want in self._wanted().items() if want.stocked)
        return to_drop(
            self._ledger.entries(),
            shelf,
            Keep(image_ids={*users.all, *self._makes}, names=frozenset(stocked)),
            budget_bytes=self._settings.disk_mb << 20,
        )

    async def _drop(self, image_id: str) -> bool:
        if image_id in self._makes:
            return False
        gone = self._dropping[image_id] = anyio.Event()
        try:
            dropped = await self._shelf.drop(image_id)
        finally:
            del self._dropping[image_id]
            gone.set()
        if dropped:
            entry = self._ledger.get(image_id)
            log.info("image.dropped", image_id=image_id, names=entry.names if entry else [])
            self._ledger.forget(image_id)
        return dropped

    def _known_names(self) -> set[str]:
        used = {name for entry in self._ledger.entries() for name in entry.names}
        return used | {whole(reference) for reference in self._wanted()}

    def _used_at(self, image_id: str) -> float | None:
        entry = self._ledger.get(image_id)
        return None if entry is None else entry.used_at


def _named(reference: str) -> ImageName | None:
    """The whole name; None for an id. Raises `image_unavailable` for what is neither."""
    if is_image_id(reference):
        return None
    try:
        return image_name(reference)
    except ValueError as error:
        raise unfit(repr(reference[:100]), str(error)) from None


def _present(reference: str, facts: ImageFacts, used_at: float | None, ours: Counter[str]) -> Image:
    return Image(
        reference=reference,
        state=ImageState.PRESENT,
        digest=facts.digest,
        size_bytes=facts.size_bytes,
        used_at=used_at,
        in_use=ours[facts.image_id],
    )


@asynccontextmanager
async def open_images(
    engine: Engine, settings: ImageSettings, *, clock: Clock | None = None
) -> AsyncIterator[DockerImages]:
    """The images of an engine. Leaving ends the pulls that are under way."""
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        images = DockerImages(engine, settings, tasks, clock=clock or SystemClock())
        await images.load()
        tasks.start_soon(images.run, name="image budget")
        try:
            yield images
        except Exception as error:  # noqa: BLE001 - raised again below, outside the group
            # A task group would wrap what is none of its tasks' doing.
            failure = error
        finally:
            tasks.cancel_scope.cancel()
            with anyio.move_on_after(_LAST_SAVE_S, shield=True):
                await images.save()
    if failure is not None:
        raise failure
