"""Who uses a kernel beside our cells: Jupyter clients, and the requests they wait for. Synchronous.

Clients come back under their session's name and get what they missed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import anyio

from sandboxd.errors import SandboxdError
from sandboxd.guest.kernels import Channel
from sandboxd.kernels.messages import Message
from sandboxd.leases.tenancy import Tenancy
from sandboxd.wire.codes import ErrorCode

_MOST_BEGUN = 10_000  # ids that are remembered
_MOST_HERE = 64
_MOST_LEFT = 64  # sessions that may come back


@dataclass(slots=True, eq=False)
class Visit:
    """One client's stay. session: its name, maybe empty. process, seq: how far it has heard.

    replaced: set once its session has come again by another connection.
    """

    session: str
    process: str = ""
    seq: int = 0
    replaced: anyio.Event = field(default_factory=anyio.Event)


class Visits:
    """Those of one kernel. What they let it run is use of the sandbox, as a cell is.

    done: told when one of their requests is.
    """

    def __init__(self, tenancy: Tenancy, *, done: Callable[[], None]) -> None:
        self._tenancy = tenancy
        self._done = done
        self._begun: OrderedDict[str, None] = OrderedDict()  # ids of execute requests
        self._running: set[str] = set()  # those of them that are not done
        self._use = ExitStack()
        self._here: list[Visit] = []
        self._left: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._here)

    @property
    def busy(self) -> bool:
        """Whether the kernel runs something for one of them, or will."""
        return bool(self._running)

    def begin(self, msg_id: str) -> bool:
        """The kernel is about to be given an execute request. False: one that it had before."""
        if msg_id in self._begun:
            return False
        self._begun[msg_id] = None
        if len(self._begun) > _MOST_BEGUN:
            self._begun.popitem(last=False)
        if not self._running:
            self._use.enter_context(self._tenancy.call())
        self._running.add(msg_id)
        return True

    def end(self, msg_id: str) -> None:
        """It is done with it, or never got it."""
        if msg_id in self._running:
            self._running.discard(msg_id)
            if not self._running:
                self._use.close()
            self._done()

    def hear(self, message: Message) -> None:
        """Look whether a request is done: its idle comes last."""
        if (
            self._running
            and message.channel is Channel.IOPUB
            and message.kind == "status"
            and message.content.get("execution_state") == "idle"
        ):
            self.end(message.parent_id)

    def clear(self) -> None:
        """The process that had their requests is gone."""
        self._running.clear()
        self._use.close()

    def enter(self, session: str) -> Visit:
        """A client has come. Raises `conflict` where there are too many."""
        if len(self._here) >= _MOST_HERE:
            raise SandboxdError(
                ErrorCode.CONFLICT, f"a kernel has at most {_MOST_HERE} clients: close one"
            )
        visit = Visit(session)
        if session:
            for other in self._here:
                if other.session == session:
                    other.replaced.set()
                    visit.process, visit.seq = other.process, other.seq
            if place := self._left.pop(session, None):
                visit.process, visit.seq = place
        self._here.append(visit)
        return visit

    def leave(self, visit: Visit) -> None:
        """It has gone. The newest sessions are remembered."""
        self._here.remove(visit)
        if visit.session and not visit.replaced.is_set():
            self._left[visit.session] = (visit.process, visit.seq)
            while len(self._left) > _MOST_LEFT:
                self._left.popitem(last=False)
