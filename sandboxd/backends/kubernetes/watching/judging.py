"""Why a box died: gathers what the API server still says of its pod. Judges nothing itself."""

from __future__ import annotations

import anyio

from sandboxd.backends.kubernetes.objects import events_path, pods_path
from sandboxd.backends.kubernetes.pods import Pod, pod_from
from sandboxd.backends.kubernetes.records import BoxRecord
from sandboxd.backends.kubernetes.talking.server import ApiServer, Json, Refused, refused_call
from sandboxd.backends.kubernetes.watching.living import LivingBox
from sandboxd.backends.kubernetes.watching.verdicts import Word, death_of
from sandboxd.backends.protocol import Death
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import Fault

_WORDS_S = 5.0
_LATE_WORDS_S = 2.0
_AGAIN_S = 0.4
_MAX_WORDS = 100


class Judge:
    """Examines the dead of one namespace."""

    def __init__(self, server: ApiServer, *, namespace: str) -> None:
        self._server = server
        self._namespace = namespace

    async def examine(self, record: BoxRecord, box: LivingBox | None = None) -> Death:
        """Why a dead box died. box: as it was watched, None if nobody did.

        Raises `backend_unavailable` where nobody watched and the server does not answer: then even
        the death is not certain.
        """
        if box is not None:
            return await self._examine_fresh(record, box)
        pod = await self.find(record)
        if pod is None:
            return death_of(record, None, removed=True)
        return death_of(record, pod, removed=False, words=await self._words_if_told(pod))

    async def _examine_fresh(self, record: BoxRecord, box: LivingBox) -> Death:
        """Of one that has just died. Who deletes a pod tells why a moment after it."""
        patience = anyio.current_time() + _LATE_WORDS_S
        while True:
            words = await self._words_if_told(box.pod)
            death = death_of(record, box.pod, removed=box.removed, words=words)
            may_come = box.pod.is_going and death.fault is Fault.UNKNOWN
            if not may_come or anyio.current_time() > patience:
                return death
            await anyio.sleep(_AGAIN_S)

    async def find(self, record: BoxRecord) -> Pod | None:
        """The pod of a box, asked of the server itself; None: it is no more.

        Raises `backend_unavailable`.
        """
        if not record.name:
            return None
        try:
            pod = pod_from(await self._server.get(pods_path(self._namespace, record.name)))
        except Refused as refusal:
            if refusal.status == 404:
                return None
            raise refused_call(refusal) from refusal
        return pod if pod.uid == record.uid else None

    async def words(self, pod: Pod) -> list[Word]:
        """What was told of a pod, the oldest first. Raises Refused and as calls do.

        By its name, which is one box's alone: not every controller tells the uid.
        """
        found = await self._server.get(
            events_path(self._namespace),
            fieldSelector=f"involvedObject.kind=Pod,involvedObject.name={pod.name}",
            limit=_MAX_WORDS,
        )
        events = sorted(found.get("items") or (), key=_time_of)
        return [Word(str(each.get("reason")), str(each.get("message") or "")) for each in events]

    async def _words_if_told(self, pod: Pod) -> list[Word]:
        """None where the server does not say: the pod's own status must do."""
        try:
            with anyio.move_on_after(_WORDS_S):
                return await self.words(pod)
        except (SandboxdError, Refused):
            pass
        return []


def _time_of(event: Json) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
