"""A plain model of one lease, as its holder knows it: when it must have ended, and why it may."""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd.model.lease import Lease
from sandboxd.wire.codes import EndReason

# The reaper asks the guest before it calls a lease idle; a call there takes at most 10 s.
_LATE_S = 20.0


@dataclass
class Model:
    """What we know of one lease from outside. Times on the loop's clock.

    hard_at, hard_by: it ends by its clock then, at the earliest and at the latest: the same, but
    for a renewal of which it is not known whether it holds.
    """

    lease: Lease
    hard_at: float
    idle_s: float
    used_at: float  # certainly
    touched_at: float  # at the latest
    released: bool = False
    killed: bool = False
    hard_by: float = 0.0

    def may_have_ended(self, reason: EndReason, now: float) -> bool:
        """Whether what we did to it explains that end."""
        match reason:
            case EndReason.RELEASED:
                return self.released
            case EndReason.DIED:
                return self.killed
            case EndReason.EXPIRED:
                return now >= self.hard_at - 0.01
            case EndReason.IDLE:
                return self.idle_s > 0 and now >= self.used_at + self.idle_s - 0.01
            case _:
                return False

    def must_have_ended(self, now: float) -> bool:
        """Whether its clocks, or we, have ended it by now."""
        idle = self.idle_s > 0 and now > self.touched_at + self.idle_s + _LATE_S
        return self.released or idle or now > max(self.hard_at, self.hard_by) + _LATE_S
