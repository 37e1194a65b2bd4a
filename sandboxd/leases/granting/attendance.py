"""Whether anybody still waits for the answer to a request, and what happens when nobody does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import anyio

from sandboxd.leases.back_office import BackOffice
from sandboxd.wire.codes import EndReason

_KEPT_PLACE_S = 60.0  # of a caller who went away but can ask for the same again


class Awaited(Protocol):
    """A request that is being served.

    callers: how many wait for its answer. departures: how often the last of them went away. told:
    its id is known outside, so it is waited for by asking. settled: it has its answer.
    """

    callers: int
    departures: int
    told: bool
    settled: anyio.Event


class Attendance:
    """Counts callers. What it starts is owned by the desk."""

    def __init__(self, office: BackOffice) -> None:
        self._office = office

    @contextmanager
    def of(
        self, awaited: Awaited, *, kept: bool, name: str, abandon: Callable[[EndReason], None]
    ) -> Iterator[None]:
        """While somebody waits for the answer. Left by an exception, it may be that nobody does:
        then the request is abandoned, a minute later if it can be asked for again (`kept`).
        """
        awaited.callers += 1
        try:
            yield
        except BaseException:
            awaited.callers -= 1
            if awaited.callers == 0 and not awaited.told and self._office.open:
                self._nobody_waits(awaited, kept=kept, name=name, abandon=abandon)
            raise
        awaited.callers -= 1

    def _nobody_waits(
        self, awaited: Awaited, *, kept: bool, name: str, abandon: Callable[[EndReason], None]
    ) -> None:
        if not kept:
            abandon(EndReason.RELEASED)
        elif not awaited.settled.is_set():
            awaited.departures += 1
            self._office.start(
                self._keep_place, awaited, awaited.departures, abandon, name=f"place-{name}"
            )

    async def _keep_place(
        self, awaited: Awaited, departure: int, abandon: Callable[[EndReason], None]
    ) -> None:
        with anyio.move_on_after(_KEPT_PLACE_S):
            await awaited.settled.wait()
            return
        nobody_came = awaited.callers == 0 and awaited.departures == departure
        if nobody_came and not awaited.told:
            abandon(EndReason.RELEASED)
