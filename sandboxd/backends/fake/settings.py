"""How a fake backend is set up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandboxd.backends.fake.guest.process import Program
from sandboxd.clock import Clock, SystemClock


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeSettings:
    """What the fake can run and make, and how long it takes.

    programs: more programs by name, beside or instead of the built-in ones; each is called with
    its `Process` and returns its exit code. images: what an `image` may be; None: anything.
    start_s: how long a box takes to make. orphan_limit_s: how long an unclaimed guest lives
    without a word. clock: wall time, which records show; all waits are on the loop's own clock.
    """

    programs: Mapping[str, Program] = field(default_factory=dict)
    images: frozenset[str] | None = None
    start_s: float = 0.0
    orphan_limit_s: float = 3600.0
    clock: Clock = field(default_factory=SystemClock)
