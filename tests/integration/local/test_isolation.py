"""What a local sandbox sees of its machine, and what becomes of it for posing as its guest. What is
alike on all backends is tried in `tests/conformance/isolation`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import pytest

from sandboxd.backends.local import LocalBackend
from sandboxd.backends.protocol import BoxRef
from sandboxd.errors import SandboxdError
from sandboxd.linux.syscall_numbers import AARCH64, X86_64
from sandboxd.wire.codes import ErrorCode, Fault
from tests.integration.local.conftest import Run, order, sh

pytestmark = pytest.mark.anyio

CALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    print(os.strerror(ctypes.get_errno()) if result < 0 else f"did it: {result}")
"""


async def test_the_machines_one_counter_of_asynchronous_reads_cannot_be_used_up(
    run: Run, python: str
) -> None:
    machine = X86_64 if os.uname().machine == "x86_64" else AARCH64
    calls = f"call({machine.numbers['io_setup']}, 60000, (ctypes.c_ulong * 1)())"
    said = await run(f"{python} - <<'END'\n{CALL}\n{calls}\nEND")
    assert said == "Function not implemented\n"


async def test_threads_still_work(run: Run, python: str) -> None:
    code = "import threading as t; x = t.Thread(target=print, args=(7,)); x.start(); x.join()"
    assert await run(f"{python} -c '{code}'") == "7\n"


async def test_nothing_of_the_host_is_seen_but_programs_and_settings(
    run: Run, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    assert "No such file" in await run(f"cat {secret}")
    seen = set((await run("ls -A /")).split())
    allowed = {
        "bin",
        "dev",
        "etc",
        "home",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "opt",
        "proc",
        "root",
    }
    allowed |= {"run", "sbin", "sys", "tmp", "usr", "var", "workspace"}
    assert {name for name in seen if (Path("/") / name).exists()} - allowed <= python_homes()
    for place in ("/tmp", "/workspace", "/var/tmp"):
        assert set((await run(f"ls -A {place}")).split()) <= python_homes(place)
    assert set((await run("ls -A /run")).split()) == {"guest", "sandbox-guest"}
    assert await run("ls -A /run/guest") == "s.sock\n"


def python_homes(below: str = "/") -> set[str]:
    """What lies right below that directory on the way to the daemon's own Python."""
    ways = [Path(prefix) for prefix in (sys.prefix, sys.base_prefix)]
    return {way.relative_to(below).parts[0] for way in ways if way.is_relative_to(below)}


async def test_password_hashes_are_masked(run: Run) -> None:
    assert "$" not in await run("cat /etc/shadow /etc/gshadow /etc/shadow- 2>&1")


async def test_only_its_own_loopback_is_there(run: Run, python: str) -> None:
    devices = (await run("cat /proc/net/dev")).splitlines()[2:]
    assert [line.split(":")[0].strip() for line in devices] == ["lo"]
    code = (
        "import socket as s; a = s.create_server(('127.0.0.1', 0)); "
        "b = s.create_connection(a.getsockname()); print('up'); "
        "s.create_connection(('192.0.2.1', 80), 2)"
    )
    said = await run(f'{python} -c "{code}"')
    assert said.startswith("up\n")
    assert "unreachable" in said


async def test_commands_inherit_no_descriptor_of_ours(run: Run) -> None:
    assert set((await run("for f in /proc/self/fd/*; do echo ${f##*/}; done")).split()) <= set(
        "0123"
    )
    assert "user:[" not in await run("ls -l /proc/self/fd")


async def test_whoever_poses_as_the_guest_ends_the_sandbox(
    backend: LocalBackend, box: BoxRef, python: str
) -> None:
    code = (
        "import os, socket as s, time; os.unlink('/run/guest/s.sock'); "
        "c = s.socket(s.AF_UNIX); c.bind('/run/guest/s.sock'); c.listen(); "
        "print('posing', flush=True); time.sleep(60)"
    )
    await sh(backend, box, f'{python} -c "{code}" > up & while ! [ -s up ]; do sleep 0.01; done')
    with anyio.fail_after(30):
        async with backend.watch() as deaths:
            with pytest.raises(SandboxdError) as caught:
                await backend.connect(box)
            death = await anext(deaths)
    assert (caught.value.code, caught.value.fault) == (ErrorCode.SANDBOX_LOST, Fault.AGENT)
    assert (death.fault, death.mask) == (Fault.AGENT, False)
    assert death.evidence["peer_pid"] != death.evidence["guest_pid"]


async def test_a_socket_that_points_elsewhere_is_not_believed(
    backend: LocalBackend, box: BoxRef, tmp_path: Path
) -> None:
    listener = await anyio.create_unix_listener(tmp_path / "host.sock")
    async with listener:
        await sh(backend, box, f"ln -sf {tmp_path}/host.sock /run/guest/s.sock")
        with pytest.raises(SandboxdError) as caught, anyio.fail_after(30):
            await backend.connect(box)
    assert (caught.value.code, caught.value.fault) == (ErrorCode.SANDBOX_LOST, Fault.AGENT)


async def test_boxes_do_not_see_each_other(backend: LocalBackend, box: BoxRef) -> None:
    with anyio.fail_after(30):
        other = await backend.make(order())
    await sh(backend, box, "echo mine > /tmp/file; echo mine > /usr/file")
    record = await sh(backend, other, "cat /tmp/file /usr/file")
    assert record.exit_code != 0
    assert record.stdout.total_bytes == 0


async def test_other_users_exist_where_that_is_said(backend: LocalBackend, box: BoxRef) -> None:
    if not backend.capabilities().other_users:
        pytest.skip("not root: one user id in each sandbox")
    record = await sh(backend, box, "id -u; touch /tmp/mine; stat -c %u /tmp/mine", user="1234")
    assert record.stdout.head == b"1234\n1234\n"
    record = await sh(backend, box, "touch f && chown 1234:1234 f && stat -c %u f")
    assert record.stdout.head == b"1234\n"


async def test_hidden_directories_count_as_disk(
    backend: LocalBackend, run: Run, box: BoxRef
) -> None:
    await run("mkdir d && head -c 3000000 /dev/zero > d/f && sync && chmod 0 d")
    with anyio.fail_after(30):
        while ((await backend.read(box)).disk_bytes or 0) < 3_000_000:  # noqa: ASYNC110
            await anyio.sleep(0.05)
