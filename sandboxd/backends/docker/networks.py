"""The engine's networks that boxes may be on: none, or one bridge of ours to the internet."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio

from sandboxd.backends.docker.engine import Engine, EngineRefused
from sandboxd.backends.docker.labels import INSTALLATION
from sandboxd.backends.docker.refusals import call_refused, start_refused
from sandboxd.backends.docker.settings import DockerSettings
from sandboxd.errors import SandboxdError

_CLOSING_S = 10.0
_MAKING_S = 10.0


class Networks:
    """Of one installation. Its bridge is made for the first box that needs it."""

    def __init__(self, engine: Engine, settings: DockerSettings) -> None:
        self._engine = engine
        self._installation = settings.installation
        self._given = settings.network
        self._own = f"sandboxd-{settings.tag}"
        self._lock = anyio.Lock()
        self._made = False

    async def name_for(self, kind: str, *, image: str) -> str:
        """What the engine calls the network of that kind. Raises `capacity`, `start_failed`.

        image: whose box it is for, named in errors.
        """
        if kind == "none":
            return "none"
        if self._given:
            return self._given
        async with self._lock:
            if not self._made:
                await self._make(image)
                self._made = True
        return self._own

    async def _make(self, image: str) -> None:
        try:
            if not await self._find():
                # Even if cancelled it is waited for, or the next to come would make a second one.
                with anyio.CancelScope(shield=True), anyio.fail_after(_MAKING_S):
                    await self._create()
        except EngineRefused as refusal:
            if refusal.status != 409:  # made meanwhile
                raise start_refused(refusal, image) from refusal

    async def _create(self) -> None:
        await self._engine.call(
            self._engine.api.create_network,
            self._own,
            driver="bridge",
            # Boxes reach the internet, and never each other.
            options={"com.docker.network.bridge.enable_icc": "false"},
            labels={INSTALLATION: self._installation},
            check_duplicate=True,
        )

    async def _find(self) -> list[dict[str, Any]]:
        label = f"{INSTALLATION}={self._installation}"
        found: list[dict[str, Any]] = await self._engine.call(
            self._engine.api.networks, filters={"label": [label]}
        )
        return found

    async def offers_internet(self) -> bool:
        """Whether boxes may reach the internet here. Raises `backend_unavailable`.

        An engine that was told to have no bridge, or to leave the packet filter alone, has no
        default bridge: then one of ours would lead nowhere.
        """
        wanted = self._given or "bridge"
        try:
            found = await self._engine.call(self._engine.api.networks, names=[wanted])
        except EngineRefused as refusal:
            raise call_refused(refusal) from refusal
        return any(network["Name"] == wanted for network in found)

    async def close(self) -> None:
        """Remove what is ours and nobody uses; the engine keeps what somebody uses."""
        with anyio.move_on_after(_CLOSING_S), suppress(SandboxdError, EngineRefused):
            for network in await self._find():
                await self._engine.call(self._engine.api.remove_network, network["Id"])
