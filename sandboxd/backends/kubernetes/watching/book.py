"""The pods of this installation as the API server last told of them. Synchronous, but for waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import anyio

from sandboxd.backends.kubernetes.pods import Pod

T = TypeVar("T")


class PodBook:
    """Every pod of ours by its name. It may lag behind, and never runs ahead.

    flows: changes are heard at this moment. synced: set once all pods have been read.
    """

    def __init__(self) -> None:
        self.flows = False
        self.synced = anyio.Event()
        self._pods: dict[str, Pod] = {}
        self._new: dict[str, float] = {}  # when we heard by ourselves of pods no list has told yet
        self._bells: dict[str, anyio.Event] = {}
        self._on_change: list[Callable[[Pod], None]] = []
        self._on_gone: list[Callable[[Pod], None]] = []

    def when_changed(self, changed: Callable[[Pod], None], gone: Callable[[Pod], None]) -> None:
        """Whom to tell, synchronously, of each pod that is new or changed, and that is gone."""
        self._on_change.append(changed)
        self._on_gone.append(gone)

    def get(self, name: str) -> Pod | None:
        """The pod of that name."""
        return self._pods.get(name)

    def all(self) -> list[Pod]:
        """Every pod."""
        return list(self._pods.values())

    def learn(self, pod: Pod) -> None:
        """A pod that was just created. What has been told of it meanwhile is newer."""
        known = self._pods.get(pod.name)
        if known is None or known.uid != pod.uid:
            self._new[pod.name] = anyio.current_time()
            self.put(pod)

    def put(self, pod: Pod) -> None:
        """A pod is new, or has changed."""
        self._pods[pod.name] = pod
        for tell in self._on_change:
            tell(pod)
        self._ring(pod.name)

    def drop(self, pod: Pod) -> None:
        """A pod is gone."""
        known = self._pods.get(pod.name)
        if known is not None and known.uid == pod.uid:
            del self._pods[pod.name]
            self._new.pop(pod.name, None)
        for tell in self._on_gone:
            tell(pod)
        self._ring(pod.name)

    def settle(self, pods: Iterable[Pod], *, asked_at: float) -> None:
        """All that there were, at some time after `asked_at` on the loop's clock."""
        found = {pod.name: pod for pod in pods}
        for pod in found.values():
            known = self._pods.get(pod.name)
            if known is not None and known.uid != pod.uid:
                self.drop(known)
            self.put(pod)
        for pod in self.all():
            if pod.name not in found and self._new.get(pod.name, 0.0) < asked_at:
                self.drop(pod)
        self._new = {name: at for name, at in self._new.items() if at >= asked_at}
        self.synced.set()

    async def until(self, name: str, found: Callable[[Pod | None], T | None]) -> T:
        """What `found` first makes of the pod of that name; the deadline is the caller's.

        Raises whatever `found` raises.
        """
        while True:
            result = found(self._pods.get(name))
            if result is not None:
                return result
            await self._bells.setdefault(name, anyio.Event()).wait()

    def _ring(self, name: str) -> None:
        bell = self._bells.pop(name, None)
        if bell is not None:
            bell.set()
