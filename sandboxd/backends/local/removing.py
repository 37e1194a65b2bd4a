"""Removing boxes: first every process, then groups, then files. Idempotent; gone is success."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
from anyio import CapacityLimiter, to_thread

from sandboxd.backends.local.boxes import BoxShelf
from sandboxd.backends.local.launching.launcher import OuterBwrap
from sandboxd.backends.local.living import LivingBox, Roster, reap
from sandboxd.errors import SandboxdError
from sandboxd.linux.cgroups import Cgroups
from sandboxd.linux.processes import ended, has_ended, kill, pid_namespace, pidfd_of
from sandboxd.turns import Turns
from sandboxd.wire.codes import ErrorCode

_DYING_S = 10.0  # for a killed namespace to be gone
_GROUP_S = 5.0  # for its groups to become empty


class Remover:
    """Removes boxes of one installation."""

    def __init__(self, roster: Roster, shelf: BoxShelf, cgroups: Cgroups) -> None:
        self._roster = roster
        self._shelf = shelf
        self._cgroups = cgroups
        self._limiter = CapacityLimiter(8)  # they wait for the disk more than for each other
        self._turns = Turns()

    async def remove(self, box: LivingBox) -> None:
        """End a box under watch and remove it. Raises `backend_unavailable` if it does not die."""
        async with self._turns.alone(box.box_id):
            box.is_ours = True
            box.end()
            with _patience(box.box_id):
                await box.gone.wait()
            await self._clear(box.box_id)

    async def remove_remains(self, box_id: str, outer: OuterBwrap | None = None) -> None:
        """Remove what nobody watches: processes that bubblewrap reported or that name the box.

        outer: to be collected, if it is our child. Raises as `remove`.
        """
        async with self._turns.alone(box_id):
            with _patience(box_id):
                await self._end_strays(box_id)
            await reap(outer)
            await self._clear(box_id)

    async def _end_strays(self, box_id: str) -> None:
        """Until nothing is found twice in a row.

        A bubblewrap that dies while we look may have had a child after we looked there.
        """
        quiet = 0
        while quiet < 2:
            pidfds = await to_thread.run_sync(self._find, box_id, limiter=self._limiter)
            quiet = 0 if pidfds else quiet + 1
            await _end_all(pidfds)

    def _find(self, box_id: str) -> list[int]:
        """Pidfds of what still runs. Blocking."""
        status = self._shelf.status(box_id)
        # The outer bubblewrap last: killed first, it would leave the namespace to itself.
        pids = self._shelf.pids_naming(box_id)
        if status.pid is not None and status.pid_ns == pid_namespace(status.pid):
            pids.insert(0, status.pid)
        found = []
        for pid in pids:
            pidfd = pidfd_of(pid)
            if pidfd is None:
                continue
            if has_ended(pidfd):
                os.close(pidfd)
            else:
                found.append(pidfd)
        return found

    async def _clear(self, box_id: str) -> None:
        """Groups, files, and our memory of it."""
        gone = False
        try:
            with anyio.move_on_after(_GROUP_S):
                while not gone:
                    gone = await to_thread.run_sync(self._take_away, box_id, limiter=self._limiter)
                    if not gone:  # nothing tells when a group is empty
                        await anyio.sleep(0.005)
            if not gone:
                await to_thread.run_sync(self._shelf.remove, box_id, limiter=self._limiter)
        except OSError as error:
            raise SandboxdError(
                ErrorCode.BACKEND_UNAVAILABLE, f"box {box_id} could not be removed: {error}"
            ) from error
        self._roster.forget(box_id)

    def _take_away(self, box_id: str) -> bool:
        """Its groups, and then its files; False while something still dies. Blocking."""
        gone = self._cgroups.remove(box_id)
        if gone:
            self._shelf.remove(box_id)
        return gone


async def _end_all(pidfds: list[int]) -> None:
    try:
        for pidfd in pidfds:
            kill(pidfd)
            await ended(pidfd)
    except PermissionError as error:
        raise SandboxdError(
            ErrorCode.BACKEND_UNAVAILABLE,
            f"a process of the box belongs to another user: run as the user who made it ({error})",
        ) from error
    finally:
        for pidfd in pidfds:
            os.close(pidfd)


@contextmanager
def _patience(box_id: str) -> Iterator[None]:
    """A bound on dying, with an error that says who did not."""
    try:
        with anyio.fail_after(_DYING_S):
            yield
    except TimeoutError:
        raise SandboxdError(
            ErrorCode.BACKEND_UNAVAILABLE,
            f"box {box_id} does not die; a process of it may hang in the kernel",
        ) from None
