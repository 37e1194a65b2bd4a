"""What a sandbox on this machine cannot do, tried from inside by its root.

Probes of the host's files open them for writing and never write.
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
from sandboxd.kernel.syscall_numbers import AARCH64, X86_64
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


async def test_filters_are_on_and_no_right_can_be_gained(run: Run) -> None:
    status = dict(
        line.split(":", 1)
        for line in (await run("cat /proc/self/status")).splitlines()
        if ":" in line
    )
    assert status["Seccomp"].strip() == "2"
    assert status["NoNewPrivs"].strip() == "1"
    # Neither SYS_ADMIN (21) nor SYS_PTRACE (19), NET_ADMIN (12), SYS_MODULE (16), MKNOD (27).
    for kind in ("CapEff", "CapPrm", "CapBnd"):
        held = int(status[kind], 16)
        assert not any(held >> number & 1 for number in (12, 16, 19, 21, 27))


@pytest.mark.parametrize(
    "switch",
    ["kernel/core_pattern", "kernel/printk", "kernel/modprobe", "vm/drop_caches", "kernel/sysrq"],
)
async def test_the_kernels_switches_do_not_open_for_writing(
    run: Run, python: str, switch: str
) -> None:
    said = await run(f"{python} -c 'import os; os.open(\"/proc/sys/{switch}\", os.O_WRONLY)'")
    refusals = ("Read-only file system", "Permission denied", "No such file")
    assert any(refusal in said for refusal in refusals)


async def test_other_switches_of_the_kernel_do_not_open_either(run: Run, python: str) -> None:
    for path in ("/proc/sysrq-trigger", "/proc/kcore", "/proc/kmsg", "/proc/1/mem"):
        said = await run(f"{python} -c 'import os; os.open(\"{path}\", os.O_RDWR)'")
        assert "Error" in said, path


async def test_mounts_and_namespaces_are_refused(run: Run, python: str) -> None:
    machine = X86_64 if os.uname().machine == "x86_64" else AARCH64
    calls = [
        f'call({machine.numbers["mount"]}, b"none", b"/tmp", b"tmpfs", 0, None)',
        f"call({machine.numbers['unshare']}, 0x10000000)",
        f"call({machine.numbers['unshare']}, 0x20000)",
        f"call({machine.numbers['setns']}, 0, 0)",
        f"call({machine.numbers['pivot_root']}, b'/', b'/')",
        f"call({machine.numbers['clone']}, 0x10000000 | 17, 0, 0, 0, 0)",
        f"call({machine.numbers['ptrace']}, 16, 1, 0, 0)",
        f"call({machine.numbers['bpf']}, 0, 0, 0)",
        f"call({machine.numbers['keyctl']}, 0, 0, 0, 0, 0)",
        f"call({machine.numbers['io_uring_setup']}, 8, 0)",
        f"call({machine.numbers['userfaultfd']}, 0)",
        f"call({machine.numbers['perf_event_open']}, 0, 0, 0, 0, 0)",
        f"call({machine.numbers['open_by_handle_at']}, 0, 0, 0)",
    ]
    code = "\n".join([CALL, *calls])
    said = await run(f"{python} - <<'END'\n{code}\nEND")
    assert said.splitlines() == ["Operation not permitted"] * len(calls)


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


async def test_processes_of_the_host_are_not_there(run: Run) -> None:
    pids = {int(name) for name in (await run("ls /proc")).split() if name.isdigit()}
    assert 1 in pids
    assert len(pids) < 10
    assert "No such process" in await run(f"kill -0 {os.getpid() + 4_000_000} 2>&1; true")


async def test_the_first_process_cannot_be_killed_from_inside(
    run: Run, backend: LocalBackend, box: BoxRef
) -> None:
    await run("n=1; while [ $n -le 31 ]; do kill -$n 1; n=$((n+1)); done; true")
    assert await run("echo alive") == "alive\n"
    assert await backend.look(box) is None


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


async def test_the_guest_does_not_answer_those_inside(run: Run, python: str) -> None:
    code = (
        "import socket as s; c = s.socket(s.AF_UNIX); c.connect('/run/guest/s.sock'); "
        "c.send(b'GET /v1/hello HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n'); print(c.recv(100))"
    )
    said = await run(f'{python} -c "{code}" 2>&1')
    assert "HTTP/1.1" not in said


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


async def test_what_is_written_stays_inside(run: Run) -> None:
    marker = "sandboxd-marker-of-a-test"
    await run(
        f"echo x > /usr/{marker}; echo x > /etc/{marker}; echo x > /{marker}; rm -rf /etc/passwd"
    )
    assert not any(on_host(f"{top}/{marker}") for top in ("/usr", "/etc", ""))
    assert on_host("/etc/passwd")


def on_host(path: str) -> bool:
    return Path(path).exists()


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
