"""The kubernetes backend, put together. Each part does its own; this file says in what order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial

from anyio.abc import ByteStream

from sandboxd.backends.kubernetes.deeds import PodDeeds
from sandboxd.backends.kubernetes.imaging.images import KubernetesImages
from sandboxd.backends.kubernetes.making import Maker
from sandboxd.backends.kubernetes.offering import refuse
from sandboxd.backends.kubernetes.reaching.short_calls import read_guest
from sandboxd.backends.kubernetes.reaching.way import Reach
from sandboxd.backends.kubernetes.records import NAME, BoxRecord, record_of_reference, reference
from sandboxd.backends.kubernetes.removing import Remover
from sandboxd.backends.kubernetes.watching.book import PodBook
from sandboxd.backends.kubernetes.watching.census import Census
from sandboxd.backends.kubernetes.watching.judging import Judge
from sandboxd.backends.kubernetes.watching.living import LivingBox, Roster
from sandboxd.backends.parts.deaths import lost
from sandboxd.backends.parts.tcp_lines import connect_proven
from sandboxd.backends.protocol import (
    BoxOrder,
    BoxRef,
    Capabilities,
    Death,
    Deeds,
    Images,
    OwnedBox,
    Readings,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What is known of an installation's pods."""

    book: PodBook
    roster: Roster
    judge: Judge
    census: Census


class KubernetesBackend:
    """Boxes as pods of one namespace. Made by `open_kubernetes` alone."""

    name = NAME

    def __init__(
        self,
        *,
        maker: Maker,
        remover: Remover,
        watched: Watched,
        reach: Reach,
        deeds: PodDeeds,
        images: KubernetesImages | None,
        capabilities: Capabilities,
    ) -> None:
        self.deeds: Deeds | None = deeds
        self._pod_deeds = deeds
        self.images: Images | None = images
        self._pod_images = images
        self._maker = maker
        self._remover = remover
        self._roster = watched.roster
        self._book = watched.book
        self._judge = watched.judge
        self._census = watched.census
        self._reach = reach
        self._capabilities = capabilities

    def capabilities(self) -> Capabilities:
        """As probed when it was opened."""
        return self._capabilities

    async def make(self, order: BoxOrder) -> BoxRef:
        """Make a box; see the protocol."""
        refuse(order.spec, self._capabilities)
        pod, stream = await self._maker.make(order)
        if self._pod_images is not None:
            self._pod_images.use(order.spec.image)
        box = self._roster.add(pod)
        if stream is not None:
            box.first.put(stream)
        return reference(box.record)

    async def dispose(self, ref: BoxRef) -> None:
        """Remove a box; see the protocol."""
        record = record_of_reference(ref)
        self._pod_deeds.drop(ref.box_id)
        await self._remover.remove(ref.box_id, record.name, uid=record.uid)

    async def dispose_remains(self, box_id: str) -> None:
        """Remove what is left of a make; see the protocol."""
        await self._remover.remove(box_id)

    async def look(self, ref: BoxRef) -> Death | None:
        """Whether it lives; adopts a box that another daemon made."""
        box = await self._find(ref)
        if box is None:
            return await self._judge.examine(record_of_reference(ref))
        if not box.is_dead:
            return None
        return await self._roster.death_of(box)

    async def list_owned(self) -> list[OwnedBox]:
        """Every pod of ours, and every secret without one; see the protocol."""
        return await self._census.take()

    async def connect(self, ref: BoxRef) -> ByteStream:
        """A stream to the guest; see the protocol."""
        box = await self._find(ref)
        if box is None or box.gone.is_set():
            raise lost(box.death if box else await self.look(ref))
        kept = box.first.take()
        if kept is not None:
            return kept
        return await connect_proven(
            box,
            partial(self._reach.dial, box.record),
            lives=partial(self._lives, box.record),
            end=box.over.set,
            mend=self._reach.mend,
        )

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Death]]:
        """Deaths from now on; see the protocol."""
        return self._roster.watch()

    async def read(self, ref: BoxRef) -> Readings:
        """What the guest says: from outside only a cluster's administrator could read it."""
        box = self._roster.get(ref.box_id)
        if box is None or box.is_dead:
            return Readings()
        return await read_guest(self._reach, box.record)

    async def _find(self, ref: BoxRef) -> LivingBox | None:
        """The box under watch, taken under it if it lives. None: it is dead and unwatched.

        Raises `backend_unavailable` where nobody can tell.
        """
        record = record_of_reference(ref)
        box = self._roster.get(ref.box_id)
        if box is not None and box.record.uid == record.uid:
            return box
        pod = self._book.get(record.name) if self._book.flows else None
        if pod is None or pod.uid != record.uid:
            pod = await self._judge.find(record)
        if pod is None or not pod.lives:
            return None
        return self._roster.get(ref.box_id) or self._roster.add(pod)

    async def _lives(self, record: BoxRecord) -> bool:
        pod = await self._judge.find(record)
        return pod is not None and pod.lives
