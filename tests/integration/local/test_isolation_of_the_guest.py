"""What a sandbox's root tries against its own guest, and against what the machine keeps from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from sandboxd.backends.local import LocalBackend, LocalSettings, open_local
from sandboxd.backends.protocol import BoxRef
from sandboxd.errors import SandboxdError
from sandboxd.guest import GuestLost
from sandboxd.linux.trees import disk_usage
from sandboxd.model.command import ExecRecord
from sandboxd.wire.codes import EndReason, ErrorCode, Fault, Outcome
from tests.integration.local.conftest import Run, dispose_all, order, sh

pytestmark = pytest.mark.anyio

LIMITS = """
import os, resource
def attempt(name, act):
    try: act()
    except OSError as error: print(name, error.strerror)
    else: print(name, "done")
for kind in ("NOFILE", "AS", "CPU", "NPROC", "FSIZE"):
    attempt(kind, lambda: resource.prlimit(1, getattr(resource, f"RLIMIT_{kind}"), (1, 1)))
attempt("nice", lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
attempt("all-nice", lambda: os.setpriority(os.PRIO_USER, 0, 19))
os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))
print("idle", os.sched_getscheduler(1))
"""

OWN_LIMITS = """
import os, resource, threading
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)
os.setpriority(os.PRIO_PROCESS, 0, 5)
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
def of_a_thread():
    os.sched_setscheduler(threading.get_native_id(), os.SCHED_OTHER, os.sched_param(0))
thread = threading.Thread(target=of_a_thread)
thread.start()
thread.join()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], os.getpriority(os.PRIO_PROCESS, 0))
"""

SIGNALS = """
import os, threading, time
end = time.monotonic() + 2
def burst(number):
    while time.monotonic() < end:
        os.kill(1, number)
threads = [threading.Thread(target=burst, args=(n,)) for n in (32, 33, 34, 32, 34)]
for thread in threads: thread.start()
while time.monotonic() < end: os.system("true & true")
for thread in threads: thread.join()
"""

# Kills every child of the first process that it has not met yet: shims, and what fell to the guest.
SHIM_HUNTER = """
import os, time
end, met = time.monotonic() + 4, {os.getpid()}
open("hunting", "w").close()
while time.monotonic() < end:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = open(f"/proc/{name}/stat").read().rpartition(") ")[2].split()[1]
            if parent == "1" and int(name) not in met:
                met.add(int(name))
                os.kill(int(name), 9)
        except (OSError, IndexError): pass
"""

DEEP = """
import os
for _ in range(400):
    os.mkdir("d"); os.chdir("d")
with open("large", "wb") as file:
    for _ in range(60): file.write(bytes(10 << 20))
    os.fsync(file.fileno())
"""


def script(python: str, text: str) -> str:
    """Shell text that runs a Python one."""
    return f"{python} - <<'END'\n{text}\nEND"


async def test_nobody_inside_sets_the_guests_limits_or_takes_its_turn(
    run: Run, backend: LocalBackend, box: BoxRef, python: str
) -> None:
    said = (await run(script(python, LIMITS))).splitlines()
    refused = [line.partition(" ")[2] for line in said]
    assert refused == [*["Operation not permitted"] * 7, "0"]
    assert await run("echo alive") == "alive\n"
    assert await backend.look(box) is None


async def test_everybody_sets_their_own(run: Run, python: str) -> None:
    assert await run(script(python, OWN_LIMITS)) == "64 5\n"


async def test_no_burst_of_signals_ends_the_guest(
    run: Run, backend: LocalBackend, box: BoxRef, python: str
) -> None:
    assert await run(script(python, SIGNALS)) == ""
    assert await run("echo alive") == "alive\n"
    assert await backend.look(box) is None


async def test_whoever_hunts_shims_forges_no_status_and_gets_no_rollout_masked(
    backend: LocalBackend, box: BoxRef, python: str
) -> None:
    await sh(
        backend,
        box,
        f"cat > hunter.py <<'END'\n{SHIM_HUNTER}\nEND\n"
        f"setsid {python} hunter.py > /dev/null 2>&1 & while ! [ -e hunting ]; do sleep 0.01; done",
    )
    records: list[ExecRecord] = [await sh(backend, box, "exit 5") for _ in range(40)]
    seen = Counter((record.outcome, record.exit_code, record.signal) for record in records)
    assert set(seen) <= {(Outcome.EXITED, 5, None), (Outcome.SIGNALED, None, "KILL")}, seen


async def test_a_tree_of_any_depth_counts_as_disk(
    backend: LocalBackend, box: BoxRef, python: str
) -> None:
    with anyio.fail_after(40):
        async with backend.watch() as deaths:
            with suppress(SandboxdError, GuestLost):  # the end may come while it writes
                await sh(backend, box, script(python, DEEP))
            death = await anext(deaths)
    assert (death.reason, death.fault, death.mask) == (EndReason.DISK, Fault.AGENT, False)


async def test_the_shared_directory_counts_as_disk(
    run: Run, box: BoxRef, settings: LocalSettings
) -> None:
    await run("head -c 3000000 /dev/zero > /run/guest/fill; sync")
    home = settings.state_dir / "boxes" / box.box_id
    assert disk_usage(home, enough_bytes=1 << 40) > 3_000_000


async def test_no_control_group_can_be_changed_from_inside(run: Run) -> None:
    said = await run(
        "for f in $(find /sys/fs/cgroup -type f); do echo 1 > $f && echo wrote $f; done"
        " 2>/dev/null; for d in $(find /sys/fs/cgroup -mindepth 1 -type d);"
        " do mkdir $d/x && echo made $d; done 2>/dev/null; true"
    )
    assert said == ""


@pytest.fixture
async def hiding(settings: LocalSettings) -> AsyncIterator[LocalBackend]:
    """A backend that hides a file and a directory of the machine's own."""
    hidden = (Path("/etc/passwd"), Path("/usr/share"), Path("/nowhere/at/all"))
    async with open_local(replace(settings, hidden=hidden)) as opened:
        yield opened
        await dispose_all(opened)


async def test_what_is_hidden_is_not_there(hiding: LocalBackend) -> None:
    if any("can be read inside" in note for note in hiding.capabilities().notes):
        pytest.skip("no overlays here, and without them nothing can be hidden")
    with anyio.fail_after(30):
        box = await hiding.make(order())
    record = await sh(hiding, box, "cat /etc/passwd; ls /usr/share/; ls -d /usr/bin /etc/hosts")
    assert record.stdout.head == b"/etc/hosts\n/usr/bin\n"
    assert b"Not a directory" in record.stderr.head


async def test_a_shortage_of_the_daemons_own_is_not_blamed_on_the_sandbox(
    backend: LocalBackend, box: BoxRef, settings: LocalSettings
) -> None:
    await sh(backend, box, "true")
    shared = Path(str(box.details["shared"]))
    away = shared.parent.with_name(f"{shared.parent.name}.away")
    shared.parent.rename(away)  # as a cleaner of the run directory would
    try:
        with pytest.raises(SandboxdError) as caught, anyio.fail_after(10):
            await backend.connect(box)
    finally:
        away.rename(shared.parent)
    assert caught.value.code is ErrorCode.BACKEND_UNAVAILABLE
    assert caught.value.mask
    assert await backend.look(box) is None
    assert (await sh(backend, box, "echo alive")).stdout.head == b"alive\n"
