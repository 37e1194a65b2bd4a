"""What a sandbox's root is refused by the engine's own means: our filter of calls, our rights."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from sandboxd.guest import Guest
from sandboxd.kernel.syscall_numbers import ARCHITECTURES
from sandboxd.model.claim import Claim
from sandboxd.model.command import Command
from sandboxd.model.ids import new_id
from tests.conftest import EngineHost
from tests.support.docker_boxes import backend_on, order, spec

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.timeout(120)]

CALL = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
numbers = NUMBERS[os.uname().machine]
def call(name, *arguments):
    ctypes.set_errno(0)
    wide = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    if libc.syscall(ctypes.c_long(numbers[name]), *wide) >= 0:
        return "done"
    return errno.errorcode.get(ctypes.get_errno(), "?")
limit = (ctypes.c_ulong * 2)(64, 64)
"""


@pytest.fixture
async def guest(engine_host: EngineHost) -> AsyncIterator[Guest]:
    """The guest of a claimed box of the tests' image."""
    async with backend_on(engine_host.host) as backend:
        box = await backend.make(order(spec(engine_host.image)))
        opened = Guest(lambda: backend.connect(box))
        await opened.claim(Claim(lease_id=new_id("sbx"), workdir="/workspace", life_s=600))
        yield opened
        await opened.aclose()


async def run(guest: Guest, code: str) -> str:
    numbers = {name: dict(each.numbers) for name, each in ARCHITECTURES.items()}
    argv = ("python3", "-c", CALL.replace("NUMBERS", repr(numbers)) + code)
    with anyio.fail_after(30):
        record = await guest.run(Command(exec_id=new_id("exec"), argv=argv), wait=True)
    assert record.exit_code == 0, record.stderr.head.decode()
    return record.stdout.head.decode().strip()


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ('call("mount", b"none", b"/tmp", b"tmpfs", 0, None)', "EPERM"),
        ('call("unshare", 0x10000000)', "EPERM"),
        ('call("unshare", 0x80)', "EPERM"),
        ('call("unshare", 0x200)', "done"),
        ('call("setns", 0, 0)', "EPERM"),
        ('call("ptrace", 16, 1, 0, 0)', "EPERM"),
        ('call("io_uring_setup", 8, 0)', "EPERM"),
        ('call("clone3", 0, 0)', "ENOSYS"),
        ('call("socket", 38, 5, 0)', "EAFNOSUPPORT"),
        ('call("socket", 16, 3, 9)', "EPERM"),
        ('call("socket", 16, 3, 0)', "done"),
        ('call("socketpair", 30, 1, 0, 0)', "EAFNOSUPPORT"),
        ('call("personality", 0xffffffff)', "done"),
        ('call("personality", 0x0400000)', "EPERM"),
        ('call("prlimit64", 1, 7, ctypes.byref(limit), None)', "EPERM"),
        ('call("prlimit64", 0, 7, ctypes.byref(limit), None)', "done"),
        ('call("setpriority", 0, 1, 19)', "EPERM"),
        ('call("setpriority", 2, 0, 19)', "EPERM"),
        ('call("setpriority", 0, 0, 5)', "done"),
        ('call("ioprio_set", 1, 1, 0x6007)', "EPERM"),
        ('call("sched_setscheduler", 1, 0, 0)', "EPERM"),
    ],
)
async def test_calls_that_reach_past_the_sandbox_are_refused(
    guest: Guest, expression: str, answer: str
) -> None:
    assert await run(guest, f"print({expression})") == answer


async def test_the_hosts_settings_are_out_of_reach(guest: Guest) -> None:
    places = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/run/sandbox-guest",
    ]
    # Opened for writing at the most, and never written to.
    code = f"""
for place in {places!r}:
    try:
        os.close(os.open(place, os.O_WRONLY))
        print("opened", place)
    except OSError:
        pass
"""
    assert await run(guest, code) == ""
