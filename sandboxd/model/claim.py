"""A claim: what a box is given at the moment somebody leases it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from sandboxd.model.template import Capability, Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFile:
    """A file that is there before the first command runs. mode None: 0644."""

    path: str
    data: bytes = field(repr=False)
    mode: int | None = None


@dataclass(frozen=True, slots=True)
class Affinity:
    """On which of the processors that its guest may use a box's commands run: `count` of them, from
    the `first`-th on and round.
    """

    count: int
    first: int


class CommandLimits(TypedDict):
    """Those of a claim's fields that are rlimits on commands."""

    nofile: int | None
    nproc: int | None
    max_rss_as_bytes: int | None


def command_limits(declared: Mapping[str, int], resources: Resources) -> CommandLimits:
    """What a backend declares for all of its boxes, with a box's own number of processes."""
    return CommandLimits(
        nofile=declared.get("nofile"),
        nproc=resources.pids if "nproc" in declared else None,
        max_rss_as_bytes=declared.get("max_rss_as_bytes"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The defaults of every later command and file call in this box.

    env carries secrets too, so it is kept out of reprs. life_s: seconds until the guest ends
    everything by itself, None for never. nofile, nproc, max_rss_as_bytes: rlimits on commands, for
    boxes whose machine has no better limits. affinity: None for all processors; guests that do
    not know it hear nothing of it.
    """

    lease_id: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    workdir: str = ""
    user: str = ""
    capabilities: Capability = "image"
    life_s: float | None = None
    files: tuple[ClaimFile, ...] = ()
    nofile: int | None = None
    nproc: int | None = None
    max_rss_as_bytes: int | None = None
    affinity: Affinity | None = None
