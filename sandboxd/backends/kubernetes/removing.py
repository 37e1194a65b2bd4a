"""Removing boxes: the pod, and the secret of one that never had its guest. Gone is success."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from sandboxd.backends.kubernetes.creating import GRACE_S
from sandboxd.backends.kubernetes.objects import pods_path, secrets_path, selector
from sandboxd.backends.kubernetes.talking.server import ApiServer, Json, Refused
from sandboxd.backends.kubernetes.watching.book import PodBook
from sandboxd.backends.kubernetes.watching.living import LivingBox, Roster
from sandboxd.errors import SandboxdError
from sandboxd.turns import Turns
from sandboxd.wire.codes import ErrorCode

_AT_ONCE = 8  # as many as anybody disposes of at once
_GOING_S = 20.0  # for a pod's node to say that nothing of it is left
_LOOK_EVERY_S = 5.0  # where the server does not tell by itself


class Remover:
    """Removes boxes of one installation, on a lane of its own: starts never hold it up."""

    def __init__(
        self,
        server: ApiServer,
        roster: Roster,
        book: PodBook,
        *,
        end: Callable[[LivingBox], Awaitable[None]],
        namespace: str,
        installation: str,
    ) -> None:
        """end: has the guest of a living box end it, if that can be had at once."""
        self._end = end
        self._server = server.lane(_AT_ONCE)
        self._roster = roster
        self._book = book
        self._namespace = namespace
        self._installation = installation
        self._turns = Turns()

    async def remove(self, box_id: str, name: str = "", *, uid: str = "") -> None:
        """Remove a box. Raises `backend_unavailable` if that must be tried again, also for a pod
        that is going and has not gone: until then it counts.

        name, uid: of its pod, if known; else whatever carries the box's label goes.
        """
        async with self._turns.alone(box_id):
            box = self._roster.get(box_id)
            if box is not None:
                box.is_ours = True
                if not box.is_dead:
                    await self._end(box)
            try:
                if name and uid:
                    await self._remove_pod(name, uid)
                else:
                    await self._remove_labelled(box_id)
            except Refused as refusal:
                raise _refused(refusal, box_id) from refusal
            self._roster.forget(box_id)

    async def remove_secret(self, name: str) -> None:
        """Take a token away that its guest has by now. What fails here is found by its label."""
        try:
            await self._server.delete(secrets_path(self._namespace, name))
        except Refused as refusal:
            raise _refused(refusal, name) from refusal

    async def _remove_labelled(self, box_id: str) -> None:
        wanted = selector(self._installation, box_id)
        pods = await self._server.get(pods_path(self._namespace), labelSelector=wanted)
        secrets = await self._server.get(secrets_path(self._namespace), labelSelector=wanted)
        for secret in secrets.get("items") or ():
            await self._server.delete(secrets_path(self._namespace, secret["metadata"]["name"]))
        for pod in pods.get("items") or ():
            await self._remove_pod(pod["metadata"]["name"], pod["metadata"]["uid"])

    async def _remove_pod(self, name: str, uid: str) -> None:
        """Until the server knows it no longer. Raises Refused, `backend_unavailable`."""
        path = pods_path(self._namespace, name)
        deadline = anyio.current_time() + _GOING_S
        await self._server.delete(path, grace_s=GRACE_S, uid=uid)
        while (left_s := deadline - anyio.current_time()) > 0:
            with anyio.move_on_after(min(left_s, _LOOK_EVERY_S)):
                if self._known(name, uid):
                    await self._book.until(name, lambda pod: pod is None or pod.uid != uid or None)
            if not await self._is_there(path, uid):
                return
        raise SandboxdError(
            ErrorCode.BACKEND_UNAVAILABLE,
            f"pod {name} is still terminating: its node has not said that it is gone",
            retry_after_s=5.0,
        )

    def _known(self, name: str, uid: str) -> bool:
        pod = self._book.get(name)
        return pod is not None and pod.uid == uid

    async def _is_there(self, path: str, uid: str) -> bool:
        """Asked of the server itself, unless what it tells by itself says so."""
        try:
            found: Json = await self._server.get(path)
        except Refused as refusal:
            if refusal.status == 404:
                return False
            raise
        return bool(found["metadata"]["uid"] == uid)


def _refused(refusal: Refused, what: str) -> SandboxdError:
    return SandboxdError(
        ErrorCode.BACKEND_UNAVAILABLE,
        f"the API server did not remove {what} ({refusal.status}: {refusal.detail})",
        retry_after_s=1.0,
    )
