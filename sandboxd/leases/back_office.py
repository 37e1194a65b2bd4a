"""What the rooms of the front desk share: the book, the clocks, and the tasks that do the work."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup

from sandboxd.backends.protocol import Backend
from sandboxd.clock import Clock
from sandboxd.leases.book import Book
from sandboxd.leases.slots import Slots
from sandboxd.leases.store import LeaseStore
from sandboxd.leases.terms import LeaseOrder
from sandboxd.pool.house import House
from sandboxd.telemetry.events import Events
from sandboxd.telemetry.metrics import Metrics

GUEST_GRACE_S = 10.0  # the guest's own end comes so much after ours, which can say why
CALL_S = 10.0  # for what a guest answers at once


class Gate(Protocol):
    """Who may still lease: a room that can turn a new request away. Synchronous."""

    def admit(self, order: LeaseOrder, *, owner: str, count: int) -> None:
        """Raises what the caller is to hear. count: leases of that order, 1 or a whole group."""
        ...


class Alarm:
    """When the reaper means to wake, and a way to wake it earlier."""

    def __init__(self) -> None:
        self.due = math.inf
        self.early = anyio.Event()

    def by(self, at: float) -> None:
        """Have it wake by that time (monotonic)."""
        if at < self.due:
            self.early.set()


@dataclass(slots=True, kw_only=True)
class BackOffice:
    """What granting, ending and the desk itself work on. `tasks` is there while the desk runs."""

    backend: Backend
    store: LeaseStore
    house: House
    clock: Clock
    metrics: Metrics
    events: Events
    slots: Slots
    book: Book = field(default_factory=Book)
    alarm: Alarm = field(default_factory=Alarm)
    tasks: TaskGroup | None = None
    gates: list[Gate] = field(default_factory=list)

    @property
    def open(self) -> bool:
        """Whether tasks can be started."""
        return self.tasks is not None

    def admit(self, order: LeaseOrder, *, owner: str, count: int = 1) -> None:
        """Ask every gate, right before the leases are entered in the book."""
        for gate in self.gates:
            gate.admit(order, owner=owner, count=count)

    def start(
        self, work: Callable[..., Coroutine[Any, Any, object]], *args: Any, name: str
    ) -> None:
        """Run something in the background, owned by the desk."""
        if self.tasks is None:
            raise RuntimeError("the desk does not run")
        self.tasks.start_soon(work, *args, name=name)
