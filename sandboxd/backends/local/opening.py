"""Opens the local backend: what this machine allows is found out here, once, never pretended."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread

from sandboxd.backends.local.backend import LocalBackend
from sandboxd.backends.local.boxes import BoxShelf
from sandboxd.backends.local.disk_watch import DiskWatch
from sandboxd.backends.local.launching.launcher import open_launcher
from sandboxd.backends.local.launching.making import Maker
from sandboxd.backends.local.launching.roots import SHOWN_TOPS, Root, Roots, host_root
from sandboxd.backends.local.launching.skeletons import SkeletonShelf
from sandboxd.backends.local.launching.stage import (
    OwnStage,
    RangeStage,
    Stage,
)
from sandboxd.backends.local.launching.trial import try_bwrap
from sandboxd.backends.local.living import Roster
from sandboxd.backends.local.machine import whole_machine
from sandboxd.backends.parts.background import background
from sandboxd.backends.parts.installation import refuse_odd_installation
from sandboxd.backends.protocol import Capabilities, LimitKind
from sandboxd.errors import SandboxdError
from sandboxd.guest.binary import guest_binary
from sandboxd.guest.run_dir import close_run_dir, open_run_dir
from sandboxd.linux.cgroups import Cgroups, find_cgroups
from sandboxd.linux.seccomp import filter_for_this_machine
from sandboxd.wire.codes import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """Where an installation keeps its boxes, and what it may use.

    run_dir: the short directory of sockets; None chooses one by user and installation.
    first_id, id_count: as root, the range of user and group ids that boxes live in; it must hold
    no account of the machine.
    starting: makes at once. ready_timeout_s: for a guest to answer. disk_every_s: between two
    readings of what boxes wrote. images: folders below which callers may name images. hidden: what
    no box may see of the machine, beside the directories of this installation. orphan_s: without a
    word, after which a box that is not leased ends itself.
    """

    state_dir: Path
    installation: str
    run_dir: Path | None = None
    first_id: int = 100_000
    id_count: int = 65_536
    starting: int = 8
    ready_timeout_s: float = 15.0
    disk_every_s: float = 5.0
    images: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    orphan_s: float = 3600.0

    def __post_init__(self) -> None:
        """Refuse a name that could leave the directories made after it."""
        refuse_odd_installation(self.installation)

    @property
    def tag(self) -> str:
        """The short name of this installation, on the command lines of its boxes."""
        return self.installation[:12]

    @property
    def level(self) -> str:
        """The name of this installation's own level among control groups."""
        return f"sandboxd-{self.tag}"


@asynccontextmanager
async def open_local(settings: LocalSettings) -> AsyncIterator[LocalBackend]:
    """The backend, ready to make boxes. On leaving, boxes live on; only our watch of them ends.

    Raises `backend_unavailable`, naming the mend, or `not_supported`.
    """
    seccomp = filter_for_this_machine()
    guest = guest_binary()
    shelf, run_dir = await to_thread.run_sync(open_shelf, settings)
    skeletons = await to_thread.run_sync(_open_skeletons, settings)
    cgroups = await to_thread.run_sync(find_cgroups, settings.level)
    try:
        stage = await to_thread.run_sync(open_stage, settings, run_dir, guest)
        async with open_launcher(stage, seccomp) as launcher:
            groups = [inside for _, inside in cgroups.binds("")]
            # Whoever saw another box's directories could speak to its guest.
            hidden = [settings.state_dir, run_dir, *settings.hidden]
            host, can_overlay = await launcher.call(partial(_probe, stage, shelf, groups, hidden))
            async with _watched(shelf, cgroups, every_s=settings.disk_every_s) as roster:
                yield LocalBackend(
                    maker=Maker(
                        launcher,
                        shelf,
                        skeletons,
                        cgroups,
                        hidden=hidden,
                        orphan_s=settings.orphan_s,
                    ),
                    shelf=shelf,
                    cgroups=cgroups,
                    roster=roster,
                    roots=Roots(launcher, host, can_overlay=can_overlay, groups=groups),
                    capabilities=replace(
                        _capabilities(stage, cgroups, host, can_overlay=can_overlay),
                        caller_images=("host", *map(str, settings.images)),
                        most=await to_thread.run_sync(whole_machine, settings.state_dir),
                        orphan_s=settings.orphan_s,
                    ),
                    starting=settings.starting,
                    ready_timeout_s=settings.ready_timeout_s,
                )
    finally:
        with anyio.CancelScope(shield=True):
            if not await to_thread.run_sync(shelf.list_ids):
                await to_thread.run_sync(skeletons.clear)
            await to_thread.run_sync(tidy, shelf, cgroups, run_dir)


@asynccontextmanager
async def _watched(shelf: BoxShelf, cgroups: Cgroups, *, every_s: float) -> AsyncIterator[Roster]:
    """A roster with its background tasks."""
    async with background() as tasks:
        roster = Roster(tasks, shelf, cgroups)
        tasks.start_soon(DiskWatch(roster, shelf, cgroups, every_s=every_s).run, name="disk watch")
        yield roster


def open_shelf(settings: LocalSettings) -> tuple[BoxShelf, Path]:
    """The directories of an installation, made if need be. Raises `backend_unavailable`."""
    place = settings.state_dir.resolve()
    if shown := next((top for top in SHOWN_TOPS if top in place.parents), None):
        # No overlay can stand on a directory that holds what is written to it.
        raise _unavailable(
            f"{place} lies below {shown}, which sandboxes see: give another state_dir"
        )
    try:
        run_dir = open_run_dir(settings.run_dir, settings.installation).absolute()
        group = settings.first_id if os.geteuid() == 0 else None
        shelf = BoxShelf(settings.state_dir.absolute(), run_dir, tag=settings.tag, group=group)
        shelf.open()
    except OSError as error:
        raise _unavailable(f"its directories cannot be made: {error}") from error
    return shelf, run_dir


def _open_skeletons(settings: LocalSettings) -> SkeletonShelf:
    """What boxes share on disk. Raises `backend_unavailable`."""
    owner = settings.first_id if os.geteuid() == 0 else None
    skeletons = SkeletonShelf(settings.state_dir.absolute() / "skeletons", owner=owner)
    try:
        skeletons.open()
    except OSError as error:
        raise _unavailable(f"its directories cannot be made: {error}") from error
    return skeletons


def open_stage(settings: LocalSettings, run_dir: Path, guest: Path) -> Stage:
    """Root's stage or an ordinary user's. Raises `backend_unavailable`."""
    if os.geteuid() != 0:
        return OwnStage(guest)
    try:
        return RangeStage(
            guest,
            place=run_dir,
            tag=settings.tag,
            first_id=settings.first_id,
            count=settings.id_count,
        )
    except OSError as error:
        raise _unavailable(f"no user namespace could be made ({error})") from error


def _probe(
    stage: Stage, shelf: BoxShelf, groups: Sequence[str], hidden: Sequence[Path]
) -> tuple[Root, bool]:
    """What the host image looks like here, and whether overlays work. In the launching thread."""
    if complaint := try_bwrap(stage, shelf.boxes_dir, overlay=False):
        raise _unavailable(f"bubblewrap does not work here ({complaint})")
    can_overlay = not try_bwrap(stage, shelf.boxes_dir, overlay=True)
    root = host_root(stage, can_overlay=can_overlay, groups=groups, hidden=hidden)
    return root, can_overlay


def _capabilities(stage: Stage, cgroups: Cgroups, host: Root, *, can_overlay: bool) -> Capabilities:
    grouped = cgroups.version != "none"
    held = LimitKind.ENFORCED if grouped else LimitKind.NONE
    notes = list(host.notes)
    # An rlimit on processes counts a user namespace's own: as root all boxes share one.
    rlimited = not grouped and stage.first_id is None
    if not grouped:
        notes.append(f"no control groups, so no limit on memory and cpu: {cgroups.detail}")
    if not can_overlay:
        notes.append('no overlays here: only image = "host" works, and it is read-only')
    if stage.first_id is None:
        notes.append("not root: one user id in each sandbox, no other users, no chown")
    return Capabilities(
        limits={
            "cpu": held,
            "memory": held,
            "pids": LimitKind.ENFORCED if rlimited else held,
            "disk": LimitKind.WATCHED,
        },
        networks=frozenset({"none"}),
        way_out=True,
        images='"host", or the absolute path of an unpacked root',
        other_users=stage.first_id is not None,
        oom_evidence=grouped,
        limits_on_commands={"nproc": 0} if rlimited else {},
        notes=tuple(notes),
    )


def tidy(shelf: BoxShelf, cgroups: Cgroups, run_dir: Path) -> None:
    """Take away what is empty: nothing of ours stays where no box does."""
    shelf.close()
    cgroups.close()
    close_run_dir(run_dir)


def _unavailable(why: str) -> SandboxdError:
    return SandboxdError(
        ErrorCode.BACKEND_UNAVAILABLE,
        f"the local backend: {why}; `sandboxd doctor` names the mend",
    )
