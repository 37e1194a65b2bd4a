"""The demo: a real batch of rollouts on this machine, with no set-up; every verdict is checked.

A user of the daemon and of the SDK like any other: it starts the one and drives it through the
other.
"""

from sandboxd.demo.program import run_demo

__all__ = ["run_demo"]
