"""The client: one daemon, one key, any number of sandboxes."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from sandboxd_client._async.api import PATIENCE_S, AsyncApi
from sandboxd_client._async.leasing import AsyncPlace
from sandboxd_client._async.sandbox import AsyncSandbox, every_page
from sandboxd_client._core.calls import ROUND_S, Call, encode, path_of, silence_for
from sandboxd_client._core.fields import needed
from sandboxd_client._core.settings import address_of, key_of
from sandboxd_client._runtime import aio as runtime
from sandboxd_client._runtime.aio import AsyncOpening
from sandboxd_client.options import LeaseOptions
from sandboxd_client.records import (
    ImageInfo,
    PoolInfo,
    Released,
    SandboxInfo,
    TemplateInfo,
    VersionInfo,
)

_CONNECTIONS = 1000
_IMAGES_A_CALL = 100


class AsyncSandboxd:
    """A sandboxd daemon. One of these serves thousands of concurrent rollouts.

    url, key: else SANDBOXD_API_URL and SANDBOXD_API_KEY, else `http://127.0.0.1:8420` and no key.
    tls: for https with certificates of your own. connections: at most so many; further calls
    wait for one. patience_s: how long a call goes on trying while no daemon answers.

    Makes no connection until the first call. Leaving its `with` closes connections, releases
    nothing. Safe after fork and from several event loops (the synchronous twin: threads).
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        tls: ssl.SSLContext | None = None,
        connections: int = _CONNECTIONS,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._api = AsyncApi(
            address_of(url, tls=tls),
            key=key_of(key),
            connections=connections,
            patience_s=patience_s,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def url(self) -> str:
        """Where the daemon is."""
        return self._api.url

    def lease(
        self, template: str | None = None, **options: Unpack[LeaseOptions]
    ) -> AsyncOpening[AsyncSandbox]:
        """Lease a sandbox: `await` it to hold it, or enter it to have it released as well.

        options: see LeaseOptions. Waits in the daemon's queue for `wait_timeout_s` (60 by default),
        through restarts of the daemon too. Raises Capacity when none became free,
        ImageUnavailable, StartFailed, BadRequest and so on. Cancelled while it waits: leaves the
        queue, and gives back what it may have been given.
        """
        return AsyncOpening(self._lease(template, options))

    def sandbox(self, sandbox_id: str) -> AsyncSandbox:
        """A sandbox that was leased before, by its id. Asks nothing yet.

        Leaving a `with` on it releases it, as it does on one that was leased here.
        """
        return AsyncSandbox(self._api, sandbox_id)

    async def sandboxes(
        self,
        *,
        run_id: str | None = None,
        group_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        state: str | None = None,
    ) -> list[SandboxInfo]:
        """This key's sandboxes, newest first: the live ones, unless a `state` is named."""
        query = {
            "run_id": run_id,
            "group_id": group_id,
            "label": _pairs(labels),
            "state": state,
        }
        found = await every_page(self._api, ("sandboxes",), "sandboxes", query=query)
        return [SandboxInfo.from_json(told) for told in found]

    async def release(
        self,
        *,
        run_id: str | None = None,
        group_id: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Released:
        """Release every sandbox that matches all of what is given, at least one thing."""
        query = {"run_id": run_id, "group_id": group_id, "label": _pairs(labels)}
        call = Call(method="DELETE", path=path_of("sandboxes", query=query), safe=True)
        return Released.from_json(await self._api.json(call))

    async def templates(self) -> list[TemplateInfo]:
        """The kinds of sandbox that can be leased by name."""
        found = await every_page(self._api, ("templates",), "templates", query={})
        return [TemplateInfo.from_json(told) for told in found]

    async def pools(self) -> list[PoolInfo]:
        """How the stock of each template stands."""
        found = await every_page(self._api, ("pools",), "pools", query={})
        return [PoolInfo.from_json(told) for told in found]

    async def images(self) -> list[ImageInfo]:
        """The images of sandboxes and templates, and those that are coming or failed to come."""
        found = await every_page(self._api, ("images",), "images", query={})
        return [ImageInfo.from_json(told) for told in found]

    async def prefetch(
        self, images: Sequence[str], *, timeout_s: float | None = None
    ) -> list[ImageInfo]:
        """Have images ready before their first sandbox; waits until each is here or failed to come.

        timeout_s: how long to wait at most, None for as long as it takes; those that are `pulling`
        by then go on coming. Says of each how it stands, in the order given: a failure is told by
        its `state` and `error`, and raised only where the daemon refuses to try (Forbidden,
        NotSupported). Cancelled: they go on coming.
        """
        until = None if timeout_s is None else runtime.now() + timeout_s
        found: dict[str, ImageInfo] = {}
        coming = list(dict.fromkeys(images))
        while coming:
            wait_s = ROUND_S if until is None else max(0.0, min(ROUND_S, until - runtime.now()))
            asked, coming = coming[:_IMAGES_A_CALL], coming[_IMAGES_A_CALL:]
            told = await self._prefetch(asked, wait_s=wait_s)
            found |= dict(zip(asked, told, strict=True))
            if wait_s:  # those that are still coming are waited for once more
                coming += [name for name in asked if found[name].state == "pulling"]
        return [found[name] for name in dict.fromkeys(images)]

    async def version(self) -> VersionInfo:
        """What the daemon is and can do."""
        call = Call(method="GET", path=path_of("version"), safe=True)
        return VersionInfo.from_json(await self._api.json(call))

    async def aclose(self) -> None:
        """Close the connections of this event loop. The client may be used again."""
        await self._api.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _prefetch(self, images: Sequence[str], *, wait_s: float) -> list[ImageInfo]:
        call = Call(
            method="POST",
            path=path_of("images", "prefetch", query={"wait_s": wait_s}),
            body=encode({"images": list(images)}),
            safe=True,
            silence_s=silence_for(wait_s),
        )
        told = await self._api.json(call)
        return [ImageInfo.from_json(image) for image in needed(told, "images")]

    async def _lease(self, template: str | None, options: LeaseOptions) -> AsyncSandbox:
        granted = await AsyncPlace(self._api, template, options).granted()
        return AsyncSandbox(self._api, granted.id, granted=granted)


def _pairs(labels: Mapping[str, str] | None) -> list[str]:
    return [f"{name}={value}" for name, value in (labels or {}).items()]
