"""Getting a lease: one request when stock is warm, else rounds of waiting.

Cancelled at any point, it leaves nothing waiting or leased behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from sandboxd_client._async.api import AsyncApi
from sandboxd_client._core.calls import ROUND_S, SILENCE_S, Call, encode, path_of
from sandboxd_client._core.fields import needed
from sandboxd_client._core.ids import fresh_id
from sandboxd_client._core.retries import Patience
from sandboxd_client._runtime import aio as runtime
from sandboxd_client.errors import ApiUnreachable, Capacity, SandboxdError, error_from_end
from sandboxd_client.options import LeaseOptions, lease_body
from sandboxd_client.records import SandboxInfo

# Who asks again after the daemon's own minute has lost its turn to those who still wait; so a batch
# that is many times what there is waits in one go.
WAIT_S = 600.0

_ABANDON_S = 10.0
_GRACE_S = 10.0  # beyond the caller's deadline, for an answer that is on its way
_WAITING = frozenset({"queued", "making"})


class AsyncPlace:
    """One request for a lease, from the first try until it is granted, refused or given up.

    With a key of our own the daemon answers at once, with the sandbox if stock is warm, else with
    its id to wait for: so there is always something to give back. With the caller's key it answers
    when all is done, and a refusal leaves that key free for the caller's next try.
    """

    ROOM: ClassVar[str] = "sandboxes"  # where such things are asked for
    KIND: ClassVar[str] = "lease"
    KEY: ClassVar[str] = "idempotency_key"  # the field that names the request
    ID: ClassVar[str] = "id"  # the field that names what came of it

    def __init__(
        self, api: AsyncApi, body: dict[str, Any], *, wait_s: float | None, own_key: bool
    ) -> None:
        self._api = api
        self._wait_s = WAIT_S if wait_s is None else wait_s
        self._own_key = own_key
        self._body = body | {"wait_timeout_s": self._wait_s}
        if self._own_key:
            self._body |= {"wait": False, self.KEY: fresh_id(self.KIND)}
        self._id: str | None = None
        self._settled = False  # nothing of ours can be waiting, or leased, at the daemon

    async def granted(self) -> dict[str, Any]:
        """Wait for the lease, as the daemon tells it. Raises the typed error when there is none
        within the wait.

        Cancelled, or with the answer lost for good: what the daemon may have given is given back,
        unless the caller chose the key and so can ask for it again.
        """
        deadline = runtime.now() + self._wait_s
        try:
            return await self._until(deadline)
        except BaseException:
            if self._own_key and not self._settled:
                with runtime.shielded(_ABANDON_S):
                    await self._give_back()
            raise

    async def _until(self, deadline: float) -> dict[str, Any]:
        patience = Patience(deadline=deadline)
        while True:
            try:
                return await self._one_try(deadline)
            except SandboxdError as error:
                # What the daemon answers it has done with; what got lost may be waiting.
                self._settled = self._settled or _is_an_answer(error)
                if isinstance(error, ApiUnreachable):
                    raise  # was tried for long enough one level below
                pause = patience.pause(error, safe=True, now=runtime.now())
                if pause is None:
                    raise
            await runtime.sleep(pause)
            if self._settled and self._own_key:
                self._start_anew(deadline)

    def _start_anew(self, deadline: float) -> None:
        """Ask for another sandbox in the time that is left: the last one came to nothing."""
        left_s = max(0.0, deadline - runtime.now())
        self._body |= {"wait_timeout_s": left_s, self.KEY: fresh_id(self.KIND)}
        self._id, self._settled = None, False

    async def _one_try(self, deadline: float) -> dict[str, Any]:
        told = await self._ask(deadline=deadline)
        while any(needed(each, "state") in _WAITING for each in self._sandboxes(told)):
            self._id = needed(told, self.ID)
            if runtime.now() > deadline + _GRACE_S:
                queue = _queue_of(self._sandboxes(told)[-1])
                raise Capacity("no sandbox became free in time", problem=queue)
            path = path_of(self.ROOM, self._id, query={"wait_s": ROUND_S})
            told = await self._api.json(Call(method="GET", path=path, safe=True))
        ended = [each for each in self._sandboxes(told) if each["state"] in {"ending", "ended"}]
        if len(ended) == len(self._sandboxes(told)):
            self._settled = True
            raise error_from_end(ended[0].get("end") or {}, sandbox_id=needed(ended[0], "id"))
        return told

    def _sandboxes(self, told: dict[str, Any]) -> list[dict[str, Any]]:
        """What was asked for, one by one."""
        return [told]

    async def _ask(self, *, deadline: float, ends: bool = False) -> dict[str, Any]:
        silence_s = SILENCE_S if self._own_key else max(SILENCE_S, self._wait_s + _GRACE_S)
        call = Call(
            method="POST",
            path=path_of(self.ROOM),
            body=encode(self._body),
            safe=True,
            silence_s=silence_s,
            ends=ends,
        )
        return await self._api.json(call, deadline=deadline)

    async def _give_back(self) -> None:
        """Release what the daemon may have given us; if that fails, the lease's clocks will."""
        try:
            if self._id is None:
                # The answer that had the id was lost; under the same key it comes again.
                told = await self._ask(deadline=runtime.now() + _ABANDON_S, ends=True)
                self._id = needed(told, self.ID)
            path = path_of(self.ROOM, str(self._id))
            await self._api.json(Call(method="DELETE", path=path, safe=True, ends=True))
        except SandboxdError:
            return


class AsyncGroupPlace(AsyncPlace):
    """The same for several sandboxes, all or none."""

    ROOM = "groups"
    KIND = "group"
    KEY = "group_id"
    ID = "group_id"

    def _sandboxes(self, told: dict[str, Any]) -> list[dict[str, Any]]:
        sandboxes: list[dict[str, Any]] = needed(told, "sandboxes")
        return sandboxes


async def lease_one(api: AsyncApi, template: str | None, options: LeaseOptions) -> SandboxInfo:
    """Lease a sandbox; see `AsyncPlace`."""
    key = options.get("idempotency_key") or ""
    place = AsyncPlace(
        api,
        lease_body(template, options, key=key),
        wait_s=options.get("wait_timeout_s"),
        own_key=not key,
    )
    return SandboxInfo.from_json(await place.granted())


async def lease_group(
    api: AsyncApi, template: str | None, options: LeaseOptions, more: Mapping[str, Any]
) -> tuple[str, list[SandboxInfo]]:
    """Lease a group; its id and its sandboxes. more: what its body has besides."""
    key = options.get("idempotency_key") or ""
    body = {**lease_body(template, options, key=key), **more}
    if not key:
        del body["idempotency_key"]
    place = AsyncGroupPlace(
        api,
        body,
        wait_s=options.get("wait_timeout_s"),
        own_key=not (key or options.get("group_id")),
    )
    told = await place.granted()
    sandboxes = [SandboxInfo.from_json(each) for each in needed(told, "sandboxes")]
    return needed(told, "group_id"), sandboxes


def _is_an_answer(error: SandboxdError) -> bool:
    return error.retry_safe or not isinstance(error, ApiUnreachable)


def _queue_of(told: Mapping[str, Any]) -> dict[str, Any]:
    return {"details": dict(told.get("queue") or {}), "sandbox_id": told.get("id")}
