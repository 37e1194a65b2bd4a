"""What a container's root is refused, and what it gets for trying all the same.

What is alike on all backends is tried in `tests/conformance/isolation`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest
from sandboxd.linux.syscall_numbers import ARCHITECTURES
from sandboxd.model.claim import Claim
from sandboxd.model.command import Command
from sandboxd.model.ids import new_id
from sandboxd.wire.codes import EndReason, ErrorCode, Fault, Outcome
from tests.conftest import EngineHost
from tests.support.docker_boxes import backend_on, order, spec
from tests.support.hostile import Target, processes_of, target, until

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
        ('call("unshare", 0x200)', "done"),
        ('call("clone3", 0, 0)', "ENOSYS"),
        ('call("io_setup", 60000, ctypes.byref(limit))', "ENOSYS"),
        ('call("socket", 38, 5, 0)', "EAFNOSUPPORT"),
        ('call("socket", 16, 3, 9)', "EAFNOSUPPORT"),
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
        ('call("sched_setscheduler", 1, 5, ctypes.byref(limit))', "done"),
        # … and nothing came of it.
        ("os.sched_getscheduler(1)", "0"),
    ],
)
async def test_of_one_call_what_reaches_past_the_sandbox_is_refused_and_the_rest_goes_on(
    guest: Guest, expression: str, answer: str
) -> None:
    assert await run(guest, f"print({expression})") == answer


@pytest.fixture
async def attacker(engine_host: EngineHost) -> AsyncIterator[Target]:
    """A claimed box, to be attacked from inside."""
    async with (
        backend_on(engine_host.host) as backend,
        target(backend, spec(engine_host.image)) as box,
    ):
        yield box


# Kills every child of the first process that it has not met yet: shims, and what fell to the guest.
HUNTER = """
import os
met = {os.getpid()}
open("/hunting", "w").close()
while True:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = open(f"/proc/{name}/stat").read().rpartition(") ")[2].split()[1]
            if parent == "1" and int(name) not in met:
                met.add(int(name))
                os.kill(int(name), 9)
        except (OSError, IndexError): pass
"""


async def test_whoever_hunts_shims_forges_no_status_and_gets_no_rollout_masked(
    attacker: Target,
) -> None:
    await attacker.start(f"exec setsid python3 -c '{HUNTER}'")

    async def hunting() -> bool:
        return (await attacker.run("test -e /hunting")).exit_code == 0

    await until(hunting, within_s=20)
    records = [await attacker.run("exit 5") for _ in range(40)]
    seen = Counter((record.outcome, record.exit_code, record.signal) for record in records)
    assert set(seen) <= {(Outcome.EXITED, 5, None), (Outcome.SIGNALED, None, "KILL")}, seen


IMPOSTOR = """
import socket, threading
line = socket.socket(socket.AF_UNIX); line.bind("/run/guest/s.sock"); line.listen(9)
open("/tmp/posing", "w").close()
while True: line.accept()[0].sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
"""


@pytest.mark.parametrize(
    "instead",
    [
        "true",
        f"(setsid python3 -c '{IMPOSTOR}' &) ; while ! [ -e /tmp/posing ]; do sleep 0.05; done",
        "mkfifo s.sock",
        "mkdir s.sock",
        "ln -s s.sock s.sock",
        "ln -s ../../../../../../../../../../../../ENGINE s.sock",
        "ln -s /proc/self/fd/0 s.sock",
    ],
    ids=["nothing", "impostor", "fifo", "folder", "loop", "engine", "descriptor"],
)
async def test_whoever_takes_the_place_of_the_guests_socket_ends_by_their_own_doing(
    attacker: Target, engine_host: EngineHost, instead: str
) -> None:
    engine = engine_host.host.removeprefix("unix:///")
    await attacker.run(f"cd /run/guest && rm s.sock && {instead.replace('ENGINE', engine)}")
    await attacker.guest.drop_idle()
    with pytest.raises(SandboxdError) as caught, anyio.fail_after(15):
        await attacker.backend.connect(attacker.box)
    assert caught.value.code is ErrorCode.SANDBOX_LOST
    death = await attacker.backend.look(attacker.box)
    assert death is not None
    assert (death.reason, death.fault, death.mask) == (EndReason.DIED, Fault.AGENT, False)


async def test_closing_the_shared_folder_shuts_nobody_out(attacker: Target) -> None:
    await attacker.run("cd /run/guest && chmod 0 . s.sock && chown 5:5 . s.sock")
    await attacker.guest.drop_idle()
    assert await attacker.says("echo alive") == "alive\n"


async def test_the_images_user_cannot_touch_the_guests_socket(attacker: Target) -> None:
    said = await attacker.says("rm -f /run/guest/s.sock; ls /run/guest", user="nobody")
    assert said.count("denied") == 2


async def test_what_is_left_in_the_shared_folder_goes_and_leads_nowhere(
    engine_host: EngineHost, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    state = tmp_path / "state"
    async with (
        backend_on(engine_host.host, state_dir=state, disk_every_s=0.5) as backend,
        target(backend, spec(engine_host.image)) as box,
    ):
        await box.run(
            f"cd /run/guest && ln -s {precious} link && ln -s {precious}/file f && mkfifo p"
            f" && mkdir -p a/b/c && ln -s {precious} a/b/c/link && chmod 0 a/b a"
            " && cp /bin/sh sh && chmod 4755 sh . && python3 -c"
            " 'import socket; socket.socket(socket.AF_UNIX).bind(\"other\")'"
        )
        shared = state / "docker" / "boxes" / box.box.box_id
        assert (shared / "sh").stat().st_mode & 0o4000
        # Nobody of the machine gets at what a sandbox's root made to belong to the machine's.
        assert (state / "docker").stat().st_mode & 0o777 == 0o700
    assert not shared.exists()
    assert (precious / "file").read_text() == "x"


async def test_nothing_outlives_a_release(attacker: Target) -> None:
    await attacker.run(
        "for n in 1 2 3; do (setsid sh -c 'trap \"\" 1 2 3 15; while :; do sleep 1; done' &); done"
    )
    before = processes_of(attacker.box)
    assert len(before) > 4
    with anyio.fail_after(20):
        await attacker.backend.dispose(attacker.box)
    assert processes_of(attacker.box) == set()


async def test_no_control_group_can_be_changed_and_no_device_made(attacker: Target) -> None:
    said = await attacker.says(
        "for f in $(find /sys/fs/cgroup -type f); do echo 1 > $f && echo wrote $f; done"
        " 2>/dev/null; for d in $(find /sys/fs/cgroup -mindepth 1 -type d);"
        " do mkdir $d/x && echo made $d; done 2>/dev/null;"
        " mknod /tmp/d b 8 0 2>/dev/null && echo device; true"
    )
    assert said == ""


async def test_without_rights_not_even_a_set_user_id_program_has_any(
    engine_host: EngineHost,
) -> None:
    async with backend_on(engine_host.host) as backend:
        box = await backend.make(order(spec(engine_host.image)))
        bare = Guest(lambda: backend.connect(box))
        claim = Claim(lease_id=new_id("sbx"), workdir="/workspace", life_s=600)
        await bare.claim(replace(claim, capabilities="none"))
        text = (
            "cp /bin/grep /tmp/g; chmod 4755 /tmp/g;"
            " /tmp/g -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status"
        )
        record = await bare.run(
            Command(exec_id=new_id("exec"), argv=("/bin/sh", "-c", text)), wait=True
        )
        await bare.aclose()
    values = [line.split()[1] for line in record.stdout.head.decode().splitlines()]
    assert values == ["0" * 16, "0" * 16, "1"]
