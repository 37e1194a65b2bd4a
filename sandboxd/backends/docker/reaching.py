"""The way to a guest from here: today its socket, in the directory that a box shares with us."""

from __future__ import annotations

import anyio
from anyio import to_thread
from anyio.abc import ByteStream

from sandboxd.backends.deaths import forged
from sandboxd.backends.docker.living import LivingBox
from sandboxd.backends.docker.places import Places
from sandboxd.backends.protocol import Death
from sandboxd.errors import SandboxdError
from sandboxd.guest.proven import NotTheGuest, connect_guest, is_our_own, says_hello
from sandboxd.kernel.processes import ProcessMark, mark_process, open_pidfd, pid_namespace
from sandboxd.wire.codes import ErrorCode

_UNREACHABLE_S = 2.0
_AGAIN_S = 0.005
_STEP_S = 0.002


class SocketReach:
    """Guests that listen on a socket which the kernel proves to be theirs."""

    def __init__(self, places: Places) -> None:
        self._places = places

    async def mark(self, pid: int) -> tuple[ProcessMark, int]:
        """The first process of a container that was just started, and a pidfd of it.

        Raises `start_failed` if it ended already.
        """
        return await to_thread.run_sync(_mark, pid)

    async def wait_for_guest(self, box_id: str, pid: int) -> None:
        """Until the guest answers; the deadline is the caller's. Raises `start_failed`."""
        path = self._places.socket(box_id)
        try:
            # To look for the socket costs a tenth of an attempt to connect.
            while not path.exists() or not await says_hello(path, pid):
                if pid_namespace(pid) is None:
                    raise ended_early()
                await anyio.sleep(_STEP_S)
        except NotTheGuest as error:
            raise SandboxdError(ErrorCode.START_FAILED, str(error)) from error

    async def connect(self, box: LivingBox) -> ByteStream:
        """A stream to the guest of a living box, proven to be the guest's.

        Raises `sandbox_lost`; who takes the guest's place ends the box.
        """
        path = self._places.socket(box.box_id)
        pid = box.record.process.pid if box.record.process else 0
        while True:
            try:
                return await connect_guest(path, pid)
            except NotTheGuest as error:
                await _end(box, forged(box.box_id, peer_pid=error.peer_pid, guest_pid=pid))
                raise lost(box.death) from error
            except BlockingIOError:  # the guest's queue of connections is full
                await anyio.sleep(_AGAIN_S)
            except OSError as error:
                if is_our_own(error, path.parent):
                    raise SandboxdError(
                        ErrorCode.BACKEND_UNAVAILABLE,
                        f"the daemon cannot reach the sandbox ({error}): see `sandboxd doctor`",
                    ) from error
                with anyio.move_on_after(_UNREACHABLE_S):
                    await box.gone.wait()
                if not box.gone.is_set():
                    await _end(box, forged(box.box_id, peer_pid=0, guest_pid=pid))
                raise lost(box.death) from error


def _mark(pid: int) -> tuple[ProcessMark, int]:
    mark = mark_process(pid, pid_ns=pid_namespace(pid) or 0) if pid else None
    pidfd = open_pidfd(mark) if mark else None
    if mark is None or pidfd is None:
        raise ended_early()
    return mark, pidfd


async def _end(box: LivingBox, verdict: Death) -> None:
    """End a box for a reason of ours. The first reason stands."""
    box.verdict = box.verdict or verdict
    if not box.kill():
        raise SandboxdError(
            ErrorCode.SANDBOX_LOST, verdict.detail, fault=verdict.fault, mask=verdict.mask
        )
    await box.gone.wait()


def ended_early() -> SandboxdError:
    """Its first process ended before it answered."""
    return SandboxdError(ErrorCode.START_FAILED, "the sandbox ended while it started")


def lost(death: Death | None) -> SandboxdError:
    """The error for whoever wants to reach a dead box."""
    if death is None:
        return SandboxdError(ErrorCode.SANDBOX_LOST, "the sandbox was removed")
    return SandboxdError(
        ErrorCode.SANDBOX_LOST,
        f"the sandbox died: {death.detail}",
        fault=death.fault,
        mask=death.mask,
        details={"reason": death.reason, "evidence": dict(death.evidence)},
    )
