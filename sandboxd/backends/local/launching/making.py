"""Making one box, step by step. Knows no limits on how many, and does not clean up after itself."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio
from anyio import CapacityLimiter, create_task_group, to_thread

from sandboxd.backends.local.boxes import BoxPlaces, BoxRecord, BoxShelf
from sandboxd.backends.local.launching.argv import LaunchPlan, bwrap_argv
from sandboxd.backends.local.launching.launcher import (
    Launcher,
    LaunchFds,
    OuterBwrap,
    Spawned,
    first_process,
    read_complaints,
)
from sandboxd.backends.local.launching.mounts import show_mounts
from sandboxd.backends.local.launching.roots import Root, build_directories, overlays_for
from sandboxd.backends.local.launching.skeletons import Skeleton, SkeletonShelf
from sandboxd.backends.protocol import BoxOrder
from sandboxd.errors import SandboxdError
from sandboxd.guest.inside import MAX_SOCKET_PATH_BYTES
from sandboxd.guest.proven import NotTheGuest, says_hello
from sandboxd.linux.cgroups import Cgroups
from sandboxd.linux.processes import (
    ProcessMark,
    has_ended,
    mark_process,
    open_pidfd,
)
from sandboxd.wire.codes import ErrorCode, Fault

_MIB = 1 << 20
_SURE_SHARE = 0.7  # of the usual time, in which nobody need look whether a guest is there
_STEP_SHARE = 0.07
_SHORTEST_STEP_S = 0.0005
_LONGEST_STEP_S = 0.02
_REMEMBERED = 8  # makes
_LONGEST_USUAL_S = 0.2  # one that took seconds says nothing of the next


@dataclass(slots=True)
class Attempt:
    """How far a make has come: what must be collected if it fails."""

    outer: OuterBwrap | None = None


class Maker:
    """Makes boxes of one installation."""

    def __init__(
        self,
        launcher: Launcher,
        shelf: BoxShelf,
        skeletons: SkeletonShelf,
        cgroups: Cgroups,
        *,
        hidden: Sequence[Path],
        orphan_s: float,
    ) -> None:
        """hidden: what no mount of a template may show. orphan_s: as in LocalSettings."""
        self._launcher = launcher
        self._shelf = shelf
        self._skeletons = skeletons
        self._cgroups = cgroups
        self._hidden = hidden
        self._guest_arguments = ("--orphan-limit", f"{orphan_s:g}")
        self._files = CapacityLimiter(2)  # more would wait for each other's turn in Python
        self._joins = CapacityLimiter(16)
        self._patience = _Patience()
        self._shown: dict[Path, str] = {}

    async def make(self, order: BoxOrder, root: Root, attempt: Attempt) -> tuple[BoxRecord, int]:
        """Make a box and wait for its guest: its record, and a pidfd of its first process.

        Raises `start_failed`, `disk_full`, `conflict`. Failed or cancelled: what there is of it
        stays, and is found by the box's id.
        """
        try:
            return await self._make(order, root, attempt)
        except OSError as error:  # whatever the machine refused on the way
            raise _translate(error) from error

    async def _make(self, order: BoxOrder, root: Root, attempt: Attempt) -> tuple[BoxRecord, int]:
        record = BoxRecord(
            box_id=order.box_id,
            labels=dict(order.labels),
            disk_limit_bytes=order.spec.resources.disk_mb * _MIB,
            memory_limit_bytes=order.spec.resources.memory_mb * _MIB,
        )
        places = await to_thread.run_sync(self._lay_out, record, order, root, limiter=self._files)
        spawned = await self._launcher.spawn(
            lambda fds: bwrap_argv(self._plan(places, order, root, fds)),
            places,
            group=self._cgroups.hosting(record.box_id),
        )
        attempt.outer = spawned.outer
        try:
            record, pidfd = await self._hold(record, spawned, places)
        finally:
            spawned.close()
        try:
            await self._patience.wait_for_guest(places, record, pidfd)
        except BaseException:
            os.close(pidfd)
            raise
        return record, pidfd

    def _lay_out(self, record: BoxRecord, order: BoxOrder, root: Root) -> BoxPlaces:
        """Everything of a box that is files. Blocking."""
        places = self._shelf.create(record)
        if len(os.fsencode(places.socket)) > MAX_SOCKET_PATH_BYTES:
            raise SandboxdError(
                ErrorCode.BACKEND_UNAVAILABLE,
                f"the socket path {places.socket} is too long; set a shorter run directory",
            )
        for skeleton in root.skeletons:
            self._skeletons.ready(skeleton)
        build_directories(places, root, owner=self._launcher.stage.first_id)
        self._cgroups.create(record.box_id, order.spec.resources)
        return places

    def _plan(self, places: BoxPlaces, order: BoxOrder, root: Root, fds: LaunchFds) -> LaunchPlan:
        """In the launching thread, the only one that knows the stage."""
        stage = self._launcher.stage
        shown = replace(places, home=Path(self._show(places.home)))
        groups = self._cgroups.binds(order.box_id)
        return LaunchPlan(
            bwrap=stage.bwrap,
            guest=stage.guest,
            own_root=None if root.own_top is None else str(shown.root),
            overlays=overlays_for(root, shown, skeleton_path=self._skeleton_path),
            read_only=[
                *root.read_only,
                *((self._show(source), inside) for source, inside in groups),
            ],
            shared=str(shown.run),
            mounts=show_mounts(order.spec.mounts, stage=stage, hidden=self._hidden),
            shm_bytes=(order.spec.shm_mb or order.spec.resources.memory_mb // 2) * _MIB,
            userns_fd=stage.userns_fd,
            seccomp_fd=fds.seccomp,
            info_fd=fds.info,
            status_fd=fds.status,
            block_fd=fds.block,
            guest_arguments=self._guest_arguments,
        )

    def _skeleton_path(self, skeleton: Skeleton) -> str:
        return self._show(self._skeletons.directory / self._skeletons.name(skeleton))

    def _show(self, path: Path) -> str:
        """The path of what lies in one of our own directories, which are never replaced."""
        shown = self._shown.get(path.parent)
        if shown is None:
            shown = self._launcher.stage.show(path.parent, owned=False)
            self._shown[path.parent] = shown
        return f"{shown}/{path.name}"

    async def _hold(
        self, record: BoxRecord, spawned: Spawned, places: BoxPlaces
    ) -> tuple[BoxRecord, int]:
        """Learn the first process, write it down and put it under its limits; then let it start."""
        pid, pid_ns = await first_process(spawned, places.complaints)
        mark = mark_process(pid, pid_ns=pid_ns)
        pidfd = open_pidfd(mark) if mark else None
        if mark is None or pidfd is None:
            raise _gave_up(places)
        try:
            record = replace(record, process=mark)
            await self._join(record, mark)
            spawned.release()
        except BrokenPipeError:
            os.close(pidfd)
            raise _gave_up(places) from None
        except BaseException:
            os.close(pidfd)
            raise
        return record, pidfd

    async def _join(self, record: BoxRecord, mark: ProcessMark) -> None:
        """Write down the process, and put it under limits that it was not born under. Raises
        OSError.
        """
        note = partial(self._shelf.note_process, record.box_id, mark)
        entrances = self._cgroups.entrances(record.box_id)
        if not entrances:
            await to_thread.run_sync(note, limiter=self._files)
            return
        failures: list[OSError] = []

        def attempt(job: Callable[[], object]) -> None:
            try:
                job()
            except OSError as error:  # told one by one, not as a group
                failures.append(error)

        async with create_task_group() as tasks:
            for entrance in entrances:
                enter = partial(entrance.write_text, str(mark.pid))
                tasks.start_soon(partial(to_thread.run_sync, attempt, enter, limiter=self._joins))
            await to_thread.run_sync(attempt, note, limiter=self._files)
        if failures:
            raise failures[0]


class _Patience:
    """How long a guest usually takes, so that few looks are in vain, and none comes late."""

    def __init__(self) -> None:
        self._usual_s = 0.0

    async def wait_for_guest(self, places: BoxPlaces, record: BoxRecord, pidfd: int) -> None:
        """Until the guest answers; its deadline is the caller's. Raises `start_failed`."""
        assert record.process is not None
        start = anyio.current_time()
        step_s = max(self._usual_s * _STEP_SHARE, _SHORTEST_STEP_S)
        await anyio.sleep(self._usual_s * _SURE_SHARE)
        try:
            # To look for the socket costs a tenth of an attempt to connect.
            while not places.socket.exists() or not await says_hello(
                places.socket, record.process.pid
            ):
                if has_ended(pidfd):
                    raise _gave_up(places)
                await anyio.sleep(step_s)
                step_s = min(step_s * 1.1, _LONGEST_STEP_S)
        except NotTheGuest as error:
            raise SandboxdError(ErrorCode.START_FAILED, str(error)) from error
        taken_s = anyio.current_time() - start
        self._usual_s += (min(taken_s, _LONGEST_USUAL_S) - self._usual_s) / _REMEMBERED


def _gave_up(places: BoxPlaces) -> SandboxdError:
    return SandboxdError(
        ErrorCode.START_FAILED,
        f"the sandbox ended while it started: {read_complaints(places.complaints)}",
    )


def _translate(error: OSError) -> SandboxdError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return SandboxdError(
            ErrorCode.DISK_FULL,
            f"the state directory's disk is full: {error}",
            fault=Fault.INFRA,
            mask=True,
        )
    return SandboxdError(ErrorCode.START_FAILED, f"it could not be made: {error}")
