"""Starts bubblewrap, from the one thread that stands on the stage. Knows no limits, no deaths."""

from __future__ import annotations

import json
import os
import subprocess  # noqa: TID251 - inherited descriptors, a session, another user: more than open_process has
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import anyio
from anyio import CapacityLimiter, to_thread

from sandboxd.backends.local.boxes import BoxPlaces
from sandboxd.backends.local.launching.stage import Stage
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

_T = TypeVar("_T")
_COMPLAINT_BYTES = 2000
_MAX_INFO_BYTES = 4096


class OuterBwrap(subprocess.Popen[bytes]):
    """The bubblewrap that waits outside. It lives as long as its box, so it may outlive us."""

    def __del__(self) -> None:
        """Say nothing of a child that still runs: it is meant to."""


@dataclass(frozen=True, slots=True)
class LaunchFds:
    """Descriptors as bubblewrap knows them."""

    seccomp: int
    info: int
    status: int
    block: int


@dataclass(frozen=True, slots=True)
class Spawned:
    """A bubblewrap on its way: it reports on `info_fd`, and holds the guest back until released."""

    outer: OuterBwrap
    info_fd: int
    block_fd: int

    def release(self) -> None:
        """Let the guest start."""
        os.write(self.block_fd, b"1")

    def close(self) -> None:
        """Close our ends. A guest that was not released starts then, so end the box first."""
        os.close(self.info_fd)
        os.close(self.block_fd)


class Launcher:
    """The launching thread, and what runs in it."""

    def __init__(self, stage: Stage, thread: ThreadPoolExecutor, seccomp: bytes) -> None:
        self.stage = stage
        self._thread = thread
        self._seccomp = seccomp
        self._limiter = CapacityLimiter(4)  # callers that wait for the one thread

    async def call(self, job: Callable[[], _T]) -> _T:
        """Run a blocking job in the launching thread. Not to be cancelled once it began."""
        return await to_thread.run_sync(
            lambda: self._thread.submit(job).result(), limiter=self._limiter
        )

    async def spawn(
        self,
        draft: Callable[[LaunchFds], list[str]],
        places: BoxPlaces,
        *,
        group: AbstractContextManager[None],
    ) -> Spawned:
        """Start bubblewrap, inside of `group`, with the words that `draft` makes.

        Raises `start_failed`.
        """
        try:
            return await self.call(lambda: self._spawn(draft, places, group))
        except OSError as error:
            raise SandboxdError(
                ErrorCode.START_FAILED, f"bubblewrap could not be started: {error}"
            ) from error

    def _spawn(
        self,
        draft: Callable[[LaunchFds], list[str]],
        places: BoxPlaces,
        group: AbstractContextManager[None],
    ) -> Spawned:
        info_fd, info = os.pipe()
        block, block_fd = os.pipe()
        try:
            with _files(places, self._seccomp) as (seccomp, status, complaints, null):
                fds = LaunchFds(seccomp=seccomp, info=info, status=status, block=block)
                words = draft(fds)
                passed = [seccomp, info, status, block]
                if self.stage.userns_fd is not None:
                    passed.append(self.stage.userns_fd)
                with group, self.stage.acting():
                    outer = OuterBwrap(
                        words,
                        stdin=null,
                        stdout=null,
                        stderr=complaints,
                        pass_fds=passed,
                        env={},
                        cwd="/",
                        umask=0o022,
                        start_new_session=True,
                    )
        except BaseException:
            os.close(info_fd)
            os.close(block_fd)
            raise
        finally:
            os.close(info)
            os.close(block)
        return Spawned(outer, info_fd, block_fd)


@contextmanager
def _files(places: BoxPlaces, seccomp: bytes) -> Iterator[tuple[int, int, int, int]]:
    """The filter, the report, the complaints and nothing, opened while we are still ourselves."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    reader, writer = os.pipe()
    os.write(writer, seccomp)  # well below what a pipe holds
    os.close(writer)
    fds = [
        reader,
        os.open(places.status, flags, 0o600),
        os.open(places.complaints, flags, 0o600),
        os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC),
    ]
    try:
        yield fds[0], fds[1], fds[2], fds[3]
    finally:
        for fd in fds:
            os.close(fd)


@asynccontextmanager
async def open_launcher(stage: Stage, seccomp: bytes) -> AsyncIterator[Launcher]:
    """A launching thread that stands on the stage. Raises OSError if the stage cannot be set."""
    # A thread of its own, since it changes its mounts and its ids: no shared pool may have it.
    thread = ThreadPoolExecutor(1, thread_name_prefix="sandboxd-launch")
    launcher = Launcher(stage, thread, seccomp)
    try:
        await launcher.call(stage.enter)
        yield launcher
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(thread.shutdown)
            await to_thread.run_sync(stage.close)


async def first_process(spawned: Spawned, complaints: Path) -> tuple[int, int]:
    """The pid of the box's first process, and the inode of its pid namespace.

    Raises `start_failed` with bubblewrap's own words if it gave up.
    """
    text = b""
    while not text.rstrip().endswith(b"}"):
        await anyio.wait_readable(spawned.info_fd)
        piece = os.read(spawned.info_fd, _MAX_INFO_BYTES)
        if not piece or len(text) > _MAX_INFO_BYTES:
            raise SandboxdError(
                ErrorCode.START_FAILED, f"bubblewrap gave up: {read_complaints(complaints)}"
            )
        text += piece
    facts = json.loads(text)
    return int(facts["child-pid"]), int(facts["pid-namespace"])


def read_complaints(path: Path) -> str:
    """The end of what was written to standard error, for a person."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _COMPLAINT_BYTES))
            text = file.read(_COMPLAINT_BYTES).decode(errors="replace").strip()
    except OSError:
        return "it left no word"
    return text or "it left no word"
