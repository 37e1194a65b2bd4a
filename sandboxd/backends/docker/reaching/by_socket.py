"""The way to a guest on this machine: its socket, in the directory that a box shares with us."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread
from anyio.abc import ByteStream

from sandboxd.backends.docker.places import Places
from sandboxd.backends.docker.reaching.host_paths import HostPaths
from sandboxd.backends.docker.reaching.way import Door, Facts, Hold
from sandboxd.backends.docker.records import BoxRecord, Whereabouts
from sandboxd.backends.docker.watching.living import LivingBox
from sandboxd.backends.parts.reaching import reach
from sandboxd.backends.parts.tcp_lines import EndedEarly
from sandboxd.backends.protocol import Death
from sandboxd.errors import SandboxdError
from sandboxd.guest.inside import GUEST_INSIDE, SHARED_INSIDE, SOCKET_INSIDE
from sandboxd.guest.proven import NotTheGuest, says_hello
from sandboxd.linux.processes import (
    ProcessMark,
    has_ended,
    mark_process,
    open_pidfd,
    pid_namespace,
)
from sandboxd.model.template import Mount
from sandboxd.wire.codes import ErrorCode

_STEP_S = 0.002


class SocketReach:
    """Guests that listen on a socket which the kernel proves to be theirs."""

    def __init__(self, places: Places, *, guest: Path, paths: HostPaths) -> None:
        """guest: the executable as we see it. paths: how the engine sees ours."""
        self._places = places
        self._guest = paths.to_host(guest)
        self._paths = paths

    def door(self, box_id: str) -> Door:
        """On a socket in the box's own directory."""
        shared = self._paths.to_host(self._places.shared(box_id))
        return Door(
            arguments=("--socket", SOCKET_INSIDE),
            mounts=(
                Mount(source=self._guest, target=GUEST_INSIDE),
                Mount(source=shared, target=SHARED_INSIDE, read_only=False),
            ),
        )

    async def furnish(self, box_id: str, container_id: str) -> None:
        """All that it needs is bound into it."""

    async def where(self, facts: Facts) -> Whereabouts:
        """Its first process."""
        pid = int(facts["State"]["Pid"])
        return Whereabouts(process=await to_thread.run_sync(_mark, pid) if pid else None)

    async def hold(self, record: BoxRecord) -> Hold | None:
        """By a pidfd of its first process."""
        pidfd = open_pidfd(record.process) if record.process else None
        if pidfd is None:
            return None
        if has_ended(pidfd):
            os.close(pidfd)
            return None
        return Hold(pidfd)

    async def wait_for_guest(self, record: BoxRecord) -> None:
        """Until the guest answers; the deadline is the caller's.

        Raises EndedEarly, and `start_failed` for one who takes its place.
        """
        path = self._places.socket(record.box_id)
        pid = record.process.pid if record.process else 0
        try:
            # To look for the socket costs a tenth of an attempt to connect.
            while not path.exists() or not await says_hello(path, pid):
                if pid_namespace(pid) is None:
                    raise EndedEarly
                await anyio.sleep(_STEP_S)
        except NotTheGuest as error:
            raise SandboxdError(ErrorCode.START_FAILED, str(error)) from error

    async def connect(self, box: LivingBox) -> ByteStream:
        """A stream to the guest of a living box, proven to be the guest's.

        Raises `sandbox_lost`; who takes the guest's place ends the box.
        """
        pid = box.record.process.pid if box.record.process else 0
        socket = self._places.socket(box.box_id)
        return await reach(box, socket, guest_pid=pid, end=partial(_end, box))


def _mark(pid: int) -> ProcessMark | None:
    return mark_process(pid, pid_ns=pid_namespace(pid) or 0)


async def _end(box: LivingBox, verdict: Death) -> None:
    """End a box for a reason of ours. The first reason stands."""
    box.verdict = box.verdict or verdict
    if not box.kill():
        raise SandboxdError(
            ErrorCode.SANDBOX_LOST, verdict.detail, fault=verdict.fault, mask=verdict.mask
        )
    await box.gone.wait()
