"""How leases are granted, one or a whole group at once: warm boxes, or places in the queue."""

from sandboxd.leases.granting.refusals import shutting_down
from sandboxd.leases.granting.singles import Granting

__all__ = ["Granting", "shutting_down"]
