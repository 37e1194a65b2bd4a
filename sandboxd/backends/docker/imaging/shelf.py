"""The images that an engine has, and the containers that use them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from sandboxd.backends.docker.engine import Engine, EngineRefused
from sandboxd.backends.docker.imaging.nouns import ImageFacts
from sandboxd.backends.docker.labels import INSTALLATION
from sandboxd.backends.docker.refusals import call_refused

_GONE = 404
_IN_USE = 409


@dataclass(frozen=True, slots=True, kw_only=True)
class OnShelf:
    """An image as the engine lists it. tags: its whole names, not those by digest."""

    image_id: str
    tags: frozenset[str]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """How many containers use an image, by its id: anybody's, and those that are our boxes."""

    all: Counter[str]
    ours: Counter[str]


class Shelf:
    """Looks at the engine's images. Raises `backend_unavailable` where it cannot."""

    def __init__(self, engine: Engine, *, installation: str) -> None:
        self._engine = engine
        self._installation = installation
        self._platform: tuple[str, str] | None = None

    async def find(self, reference: str) -> ImageFacts | None:
        """An image by its whole name or its id; None if it is not here."""
        try:
            found = await self._call(self._engine.api.inspect_image, reference)
        except EngineRefused as refused:
            if refused.status == _GONE:
                return None
            raise call_refused(refused) from refused
        return _facts(found)

    async def platform(self) -> tuple[str, str]:
        """The engine's own operating system and architecture, as images name them."""
        if self._platform is None:
            version = await self._ask(self._engine.api.version)
            self._platform = (str(version.get("Os", "")), str(version.get("Arch", "")))
        return self._platform

    async def ids(self) -> set[str]:
        """Every image that is here, parents of others among them."""
        listed = await self._ask(self._engine.api.images, all=True)
        return {str(item["Id"]) for item in listed}

    async def images(self) -> list[OnShelf]:
        """Every image that has a name, or had one."""
        return [_listed(item) for item in await self._ask(self._engine.api.images)]

    async def users(self) -> Users:
        """Who uses which image now, stopped containers among them."""
        everybody: Counter[str] = Counter()
        ours: Counter[str] = Counter()
        for container in await self._ask(self._engine.api.containers, all=True):
            image_id = str(container.get("ImageID", ""))
            everybody[image_id] += 1
            labels = container.get("Labels") or {}
            ours[image_id] += labels.get(INSTALLATION) == self._installation
        return Users(all=everybody, ours=ours)

    async def drop(self, image_id: str) -> bool:
        """Remove an image, which the engine refuses where a container uses it: then False."""
        try:
            # By its id and without force: refused too where several repositories name it.
            await self._call(self._engine.api.remove_image, image_id, force=False, noprune=False)
        except EngineRefused as refused:
            if refused.status == _IN_USE:
                return False
            if refused.status != _GONE:
                raise call_refused(refused) from refused
        return True

    async def _ask(self, method: Any, **arguments: Any) -> Any:
        try:
            return await self._call(method, **arguments)
        except EngineRefused as refused:
            raise call_refused(refused) from refused

    async def _call(self, method: Any, *arguments: Any, **named: Any) -> Any:
        return await self._engine.call(method, *arguments, **named)


def _facts(found: dict[str, Any]) -> ImageFacts:
    config = found.get("Config") or {}
    digests = found.get("RepoDigests") or []
    return ImageFacts(
        image_id=str(found["Id"]),
        user=str(config.get("User") or ""),
        env=tuple(map(str, config.get("Env") or ())),
        os=str(found.get("Os") or ""),
        architecture=str(found.get("Architecture") or ""),
        digest=str(digests[0]).partition("@")[2] if digests else None,
        size_bytes=int(found.get("Size") or 0),
    )


def _listed(item: dict[str, Any]) -> OnShelf:
    tags = item.get("RepoTags") or []
    return OnShelf(
        image_id=str(item["Id"]),
        tags=frozenset(str(tag) for tag in tags if tag != "<none>:<none>"),
        size_bytes=int(item.get("Size") or 0),
    )
