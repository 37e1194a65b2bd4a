"""A guest that does not listen any more: dead, or robbed of its socket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from sandboxd.backends.parts.reaching import reach
from sandboxd.backends.protocol import Death
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import Fault

pytestmark = pytest.mark.anyio

_LISTENS = """
import socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print("here", flush=True)
sys.stdin.read()
"""
_KILLED = Death(box_id="b", fault=Fault.UNKNOWN, detail="its first process was killed")


@dataclass
class Box:
    """What a backend knows of one."""

    box_id: str = "b"
    gone: anyio.Event = field(default_factory=anyio.Event)
    death: Death | None = None
    is_ours: bool = False

    async def end(self, verdict: Death) -> None:
        """As one that is killed at once."""
        self.death = verdict
        self.gone.set()


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that listens where a guest would."""
    command = [sys.executable, "-c", _LISTENS, str(tmp_path / "s.sock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"here\n"
        yield started
        started.kill()


async def test_a_guest_that_is_long_on_its_way_out_is_not_taken_for_robbed(
    guest: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    box = Box()
    guest.send_signal(signal.SIGKILL)  # nobody has waited for it, so it stays half there
    with anyio.fail_after(10):
        await to_thread.run_sync(os.waitid, os.P_PID, guest.pid, os.WEXITED | os.WNOWAIT)
        async with anyio.create_task_group() as tasks:

            async def notice() -> None:
                await anyio.sleep(2.5)  # later than a living guest is waited for
                await box.end(_KILLED)

            tasks.start_soon(notice)
            with pytest.raises(SandboxdError) as told:
                await reach(box, tmp_path / "s.sock", guest_pid=guest.pid, end=box.end)
    assert (told.value.fault, told.value.mask) == (Fault.UNKNOWN, True)
    assert box.death is _KILLED


async def test_a_living_guest_whose_socket_is_gone_was_robbed_of_it(
    guest: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    box = Box()
    (tmp_path / "s.sock").unlink()
    with anyio.fail_after(10), pytest.raises(SandboxdError) as told:
        await reach(box, tmp_path / "s.sock", guest_pid=guest.pid, end=box.end)
    assert (told.value.fault, told.value.mask) == (Fault.AGENT, False)
