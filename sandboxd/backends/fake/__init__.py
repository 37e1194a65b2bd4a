"""A backend in memory, for tests: same seam, same guest protocol, scripted programs and faults.

It isolates nothing and keeps nothing. Works on a virtual clock.
"""

from sandboxd.backends.fake.backend import FakeBackend, open_fake
from sandboxd.backends.fake.faults import Faults
from sandboxd.backends.fake.guest.process import Died, Process, Program
from sandboxd.backends.fake.settings import FakeSettings

__all__ = ["Died", "FakeBackend", "FakeSettings", "Faults", "Process", "Program", "open_fake"]
