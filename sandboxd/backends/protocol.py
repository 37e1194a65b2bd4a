"""What a backend owes: make, dispose, look, list its own, connect, watch. Six verbs.

A backend knows nothing of leases, pools, commands or HTTP; all of that is written once above this
seam. Everything a backend hands out is a frozen value that can be stored and used after a restart.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

from anyio.abc import ByteStream

from sandboxd.model.box import BoxRef
from sandboxd.model.template import BoxSpec, PodOptions, Resources
from sandboxd.wire.codes import EndReason, Fault

__all__ = [
    "Backend",
    "BoxOrder",
    "BoxRef",
    "Capabilities",
    "Death",
    "Deeds",
    "Image",
    "ImageState",
    "Images",
    "LimitKind",
    "OwnedBox",
    "Readings",
    "Wanted",
]


class LimitKind(StrEnum):
    """How a limit holds: by the kernel, by measuring every few seconds, or not at all."""

    ENFORCED = "enforced"
    WATCHED = "watched"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What this backend can do on this machine. What is false is refused, never pretended."""

    limits: Mapping[str, LimitKind]  # cpu, memory, pids, disk
    networks: frozenset[str]  # of "none", "internet", "allow": what a box itself may be on
    # Of these, what a lease that asks for it gets: a network of its box's own, past the guest.
    direct_networks: frozenset[str] = frozenset()
    way_out: bool = False  # whether guests lead out: by a proxy, and by forwards
    runtimes: frozenset[str] = frozenset()
    images: str = ""  # what an `image` may be, in words
    # What a caller may name beside the images of templates: patterns of names (`*` for anything),
    # and folders below which an image may lie. None: whatever there is.
    caller_images: tuple[str, ...] | None = None
    most: Resources | None = None  # what the machine has in all, where it is one machine
    other_users: bool = False  # commands and files as another user, chown
    gpu: bool = False
    oom_evidence: bool = False  # whether an out-of-memory kill can be told from other kills
    one_machine: bool = True  # whether all boxes share one machine, whose processors are known
    # Whether a box that is on no network is kept off it by more than a promise.
    network_enforced: bool = True
    orphan_s: float = 3600.0  # without a word, after which an unclaimed guest ends its box
    programs: Literal["any", "scripted"] = "any"  # scripted: no real processes, the fake's own
    # rlimits that every command of a box gets, for machines without better limits: `nproc` (the
    # template's own number stands in for the value), `nofile`, `max_rss_as_bytes`
    limits_on_commands: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # each gap with its mend, for `doctor`

    @property
    def all_networks(self) -> frozenset[str]:
        """What a lease may ask for: where a box can be on no network, its guest gives the rest."""
        led = {"internet", "allow"} if self.way_out and "none" in self.networks else set()
        return self.networks | led


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxOrder:
    """What to make. `labels` are written by the very call that creates the box."""

    box_id: str
    spec: BoxSpec
    labels: Mapping[str, str]  # `installation`, `pool`, `fingerprint`, `made_at`, …


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedBox:
    """A box of this installation as the backend finds it, whoever made it and when.

    ref is None for the remains of a make that never finished: fit for `dispose_remains` alone.
    lease_id: of the lease that its deed names; empty for none, and where none are kept.
    """

    box_id: str
    labels: Mapping[str, str]
    ref: BoxRef | None
    alive: bool
    lease_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """That a box is dead, and why as far as evidence goes."""

    box_id: str
    reason: EndReason = EndReason.DIED
    fault: Fault = Fault.UNKNOWN
    mask: bool = True
    detail: str = ""
    evidence: Mapping[str, str | int | float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What a box uses now, measured from outside. None where it cannot be had."""

    cpu_s: float | None = None
    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    disk_bytes: int | None = None
    oom_kills: int | None = None


class ImageState(StrEnum):
    """Where an image is."""

    PRESENT = "present"
    PULLING = "pulling"
    FAILED = "failed"  # the last attempt to get it did


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image as this machine has it. None where a fact cannot be had.

    used_at: Unix seconds of its last box. in_use: boxes of it that exist. error: of the last pull.
    progress: how far it has come, in words.
    """

    reference: str
    state: ImageState
    digest: str | None = None
    size_bytes: int | None = None
    used_at: float | None = None
    in_use: int = 0
    error: str = ""
    progress: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What templates want of an image. stocked: whether a pool keeps stock of it. pods: what they
    say of the pods of boxes that may be pulled for.
    """

    stocked: bool = False
    pods: frozenset[PodOptions] = frozenset()


class Images(Protocol):
    """What boxes are made of, where the backend keeps it itself."""

    async def list_images(self) -> list[Image]:
        """What is here, is coming, or failed to come; by reference."""
        ...

    async def prefetch(self, reference: str) -> Image:
        """Have an image ready before its first box. Present already is success; asked twice at
        once it comes once. Raises `image_unavailable`, `disk_full`, `backend_unavailable`.
        Cancelled: others who wait for it still get it.
        """
        ...

    def wanted_by(self, templates: Callable[[], Mapping[str, Wanted]]) -> None:
        """Whom to ask, before anything is dropped, what templates name: by image. Called once,
        before the first box is made; `templates` does no I/O.
        """
        ...

    def when_pulled(self, call: Callable[[str], None]) -> None:
        """Whom to tell, synchronously, of each image that has come from its registry, by the name
        that was asked for. Called once, before the first box is made.
        """
        ...


class Deeds(Protocol):
    """Notes on the boxes themselves of which lease has them: what an installation that lost its
    store, or was given an older one, can still tell a leased box by.
    """

    def note(self, ref: BoxRef, *, lease_id: str, run_id: str, group_id: str) -> None:
        """Have it noted soon, in the background. Never fails and never waits; a box that is
        disposed of before is not noted. run_id, group_id: empty for none.
        """
        ...


class Backend(Protocol):
    """A maker of boxes. Entered once per daemon as an async context manager by its `open_…()`.

    Errors that leave a backend are `sandboxd.errors.SandboxdError`s, translated where they enter:
    `image_unavailable`, `start_failed` (fault task or infra), `backend_unavailable`,
    `not_supported`, `capacity`, `disk_full`.
    """

    name: str
    images: Images | None  # None: images are kept by somebody else, and nothing is known of them
    deeds: Deeds | None  # None: nothing of a lease is noted outside of the store

    def capabilities(self) -> Capabilities:
        """What it can do here. Probed when it was opened; does no I/O."""
        ...

    async def make(self, order: BoxOrder) -> BoxRef:
        """Make a box and wait until its guest answers.

        Raises as above. Cancelled or failed: nothing of the box remains, or `list_owned` shows it.
        """
        ...

    async def dispose(self, ref: BoxRef) -> None:
        """Remove the box and all that belongs to it. Gone already is success; idempotent."""
        ...

    async def dispose_remains(self, box_id: str) -> None:
        """Remove what a make that never finished left of this installation's `box_id`."""
        ...

    async def look(self, ref: BoxRef) -> Death | None:
        """None while the box lives, else its death. Never guesses: cannot tell → raises
        `backend_unavailable`.
        """
        ...

    async def list_owned(self) -> list[OwnedBox]:
        """Every box and remains of this installation, by label; never another's."""
        ...

    async def connect(self, ref: BoxRef) -> ByteStream:
        """A fresh byte stream to the guest, proven to be the guest's.

        Raises `sandbox_lost` if the box is dead or something else answers in its place.
        """
        ...

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Death]]:
        """Deaths of living boxes from now on, those adopted by `look` included, once each."""
        ...

    async def read(self, ref: BoxRef) -> Readings:
        """Readings from outside; all None where there are none."""
        ...
