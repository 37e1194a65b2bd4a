"""Everything that is ours: pods by their label, and secrets that have none."""

from __future__ import annotations

from sandboxd.backends.kubernetes.objects import BOX, LEASE, order_labels, secrets_path, selector
from sandboxd.backends.kubernetes.pods import Pod
from sandboxd.backends.kubernetes.records import record_of_pod, reference
from sandboxd.backends.kubernetes.talking.server import ApiServer, Json, Refused, refused_call
from sandboxd.backends.kubernetes.watching.book import PodBook
from sandboxd.backends.kubernetes.watching.feed import PodFeed
from sandboxd.backends.kubernetes.watching.living import Roster
from sandboxd.backends.protocol import OwnedBox


class Census:
    """Counts the boxes of one installation."""

    def __init__(
        self,
        server: ApiServer,
        roster: Roster,
        book: PodBook,
        feed: PodFeed,
        *,
        namespace: str,
        installation: str,
    ) -> None:
        self._server = server
        self._roster = roster
        self._book = book
        self._feed = feed
        self._path = secrets_path(namespace)
        self._installation = installation

    async def take(self) -> list[OwnedBox]:
        """Every box and remains. Raises `backend_unavailable`."""
        try:
            # Secrets first: one whose pod comes meanwhile is counted with it.
            secrets = await self._server.get(self._path, labelSelector=selector(self._installation))
            await self._feed.list_all()
        except Refused as refusal:
            raise refused_call(refusal) from refusal
        found = {pod.box_id: self._owned(pod) for pod in self._book.all()}
        for secret in secrets.get("items") or ():
            remains = _remains(secret)
            found.setdefault(remains.box_id, remains)
        return list(found.values())

    def _owned(self, pod: Pod) -> OwnedBox:
        """A pod that has never run is the remains of a make that may still go on."""
        ordered = order_labels(pod.annotations)
        if not pod.runs and pod.end is None:
            return OwnedBox(box_id=pod.box_id, labels=ordered, ref=None, alive=False)
        box = self._roster.get(pod.box_id)
        watched = box is not None and box.record.uid == pod.uid
        record = box.record if box is not None and watched else record_of_pod(pod)
        alive = pod.lives and not (box is not None and watched and box.is_dead)
        return OwnedBox(
            box_id=pod.box_id,
            labels=ordered,
            ref=reference(record),
            alive=alive,
            lease_id=pod.annotations.get(LEASE, ""),
        )


def _remains(secret: Json) -> OwnedBox:
    meta = secret["metadata"]
    ordered = order_labels(meta.get("annotations") or {})
    return OwnedBox(box_id=meta["labels"][BOX], labels=ordered, ref=None, alive=False)
