"""The client: one daemon, one key, any number of sandboxes."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from sandboxd_client._async.api import PATIENCE_S, AsyncApi
from sandboxd_client._async.following import follow
from sandboxd_client._async.groups import AsyncGroup
from sandboxd_client._async.leasing import lease_group, lease_one
from sandboxd_client._async.own_server import ask_own_server
from sandboxd_client._async.runs import AsyncRun
from sandboxd_client._async.sandbox import AsyncSandbox, every_page
from sandboxd_client._core.calls import ROUND_S, Call, encode, path_of, silence_for
from sandboxd_client._core.fields import needed
from sandboxd_client._core.settings import address_of, key_of
from sandboxd_client._runtime import aio as runtime
from sandboxd_client._runtime.aio import AsyncOpening
from sandboxd_client._sync.api import Api
from sandboxd_client.options import LeaseOptions
from sandboxd_client.records import (
    Event,
    ImageInfo,
    McpServerInfo,
    PoolInfo,
    QuotaInfo,
    Released,
    RunInfo,
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
    wait for one, but for those that give something back. patience_s: how long a call goes on trying
    while no daemon answers.

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
        self._address, self._key = address_of(url, tls=tls), key_of(key)
        self._api = AsyncApi(
            self._address, key=self._key, connections=connections, patience_s=patience_s
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

        options: see LeaseOptions. Waits in the daemon's queue for `wait_timeout_s`, 600 by default,
        through restarts of the daemon too. Raises Capacity when none became free,
        ImageUnavailable, StartFailed, BadRequest and so on. Cancelled while it waits: leaves the
        queue, and gives back what it may have been given.
        """
        return AsyncOpening(self._lease(template, options))

    def group(
        self,
        template: str | None = None,
        *,
        count: int,
        rollout_ids: Sequence[str] | None = None,
        **options: Unpack[LeaseOptions],
    ) -> AsyncOpening[AsyncGroup]:
        """Lease several sandboxes at once, all or none: `await` it to hold them, or enter it to
        have them released as well. It is a sequence of sandboxes.

        rollout_ids: one for each, in their order. options: as for `lease`; `group_id` names the
        group, and the same one gives the same group. Raises as `lease` does, with why the group
        came to nothing where one of it could not be had, and BadRequest for more than the pool may
        have. Cancelled while it waits: nothing of it is left.
        """
        more: dict[str, object] = {"count": count}
        if rollout_ids is not None:
            more["rollout_ids"] = list(rollout_ids)
        return AsyncOpening(self._group(template, options, more))

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
        path = path_of("sandboxes", query=query)
        call = Call(method="DELETE", path=path, safe=True, ends=True)
        return Released.from_json(await self._api.json(call))

    def run(self, run_id: str, *, ttl_s: float = 30.0) -> AsyncRun:
        """A run: enter it, and its heartbeat keeps the sandboxes that are leased with its `run_id`
        for as long as this process lives; leaving it releases them all.

        ttl_s: 1 to 3600; after so long without a heartbeat the daemon ends what the run holds.
        """
        # The heart beats in a thread, and so needs connections of its own.
        beating = Api(self._address, key=self._key, connections=1, patience_s=ttl_s / 3)
        return AsyncRun(self._api, beating, run_id=run_id, ttl_s=ttl_s)

    async def runs(self, *, state: str | None = None) -> list[RunInfo]:
        """This key's runs, newest first: the active ones, unless a `state` is named."""
        found = await every_page(self._api, ("runs",), "runs", query={"state": state})
        return [RunInfo.from_json(told) for told in found]

    def events(
        self, *, run_id: str | None = None, after: str | None = None
    ) -> AsyncGenerator[Event, None]:
        """What happens to this key's leases and runs, and to pools and images, as it happens.

        after: the `id` of the last event that was seen, within the hour that is kept; else it
        begins now. A cut line is followed again, each event comes once; a restart of the daemon
        is told as a `gap`. It never ends by itself: to leave early, use `aclosing`.
        """
        return follow(self._api, run_id=run_id, after=after)

    async def templates(self) -> list[TemplateInfo]:
        """The kinds of sandbox that can be leased by name."""
        found = await every_page(self._api, ("templates",), "templates", query={})
        return [TemplateInfo.from_json(told) for told in found]

    async def mcp_servers(self) -> list[McpServerInfo]:
        """The MCP servers that sandboxes share, and the daemon's own, `sandboxd`."""
        told = await self._api.json(Call(method="GET", path=path_of("mcp"), safe=True))
        return [McpServerInfo.from_json(each) for each in needed(told, "mcp_servers")]

    async def speak_mcp(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of the daemon's own MCP server to one request, both as JSON-RPC has them.

        For programs that are an MCP server to others themselves.
        """
        return await ask_own_server(self._api, request)

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

    async def quota(self) -> QuotaInfo:
        """What this key's leases may take together, and take now."""
        call = Call(method="GET", path=path_of("quota"), safe=True)
        return QuotaInfo.from_json(await self._api.json(call))

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

    async def _group(
        self, template: str | None, options: LeaseOptions, more: Mapping[str, object]
    ) -> AsyncGroup:
        group_id, granted = await lease_group(self._api, template, options, more)
        sandboxes = [AsyncSandbox(self._api, info.id, granted=info) for info in granted]
        return AsyncGroup(self._api, group_id, sandboxes)

    async def _lease(self, template: str | None, options: LeaseOptions) -> AsyncSandbox:
        granted = await lease_one(self._api, template, options)
        return AsyncSandbox(self._api, granted.id, granted=granted)


def _pairs(labels: Mapping[str, str] | None) -> list[str]:
    return [f"{name}={value}" for name, value in (labels or {}).items()]
