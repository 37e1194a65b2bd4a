"""What the kernel lets those inside do: the documented rights, and nothing that reaches past."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from sandboxd.guest.inside import KEPT_CAPABILITIES
from tests.conformance.isolation import probes
from tests.conformance.isolation.conftest import Yard
from tests.contract.speaker import Speaker
from tests.support.daemon import ROOT

pytestmark = [pytest.mark.requirement("SE-05"), pytest.mark.timeout(60)]

# Their numbers, as the kernel has them.
_NUMBERS = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7,
    "SETPCAP": 8, "NET_BIND_SERVICE": 10, "SYS_CHROOT": 18,
}  # fmt: skip
_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def status_of(box: Speaker, **fields: object) -> dict[str, str]:
    said = box.exec(["cat", "/proc/self/status"], **fields)["stdout"]
    return {k: v.strip() for k, _, v in (line.partition(":") for line in said.splitlines())}


def test_the_page_names_each_right_that_is_kept() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    table = page.partition("### Rights that root inside keeps, and why")[2].partition("Not kept")[0]
    named = {name for row in re.findall(r"(?m)^\| `([A-Z_ ]+)` \|", table) for name in row.split()}
    assert named == set(KEPT_CAPABILITIES) == set(_NUMBERS)


def test_the_rights_are_those_of_the_page_and_no_more(box: Speaker, kind: str, yard: Yard) -> None:
    kept = sum(1 << _NUMBERS[name] for name in KEPT_CAPABILITIES)
    rooted = kind == "root" and yard.name != "local-user" and yard.has_users
    seen = {name: int(status_of(box)[name], 16) for name in _SETS}
    for name in _SETS:
        assert seen[name] & ~kept == 0, (name, hex(seen[name]))
    if kind == "user":
        assert seen["CapEff"] == seen["CapPrm"] == seen["CapAmb"] == 0
    if kind == "none" or not yard.has_users:
        assert set(seen.values()) == {0}
    elif rooted:
        assert seen["CapEff"] == kept


def test_nothing_can_be_gained_by_a_set_user_id_program(
    box: Speaker, kind: str, yard: Yard
) -> None:
    """Where root keeps its rights, on an engine, such programs give those and no more."""
    status = status_of(box)
    if kind == "none" or yard.name not in {"docker", "kubernetes"}:
        assert status["NoNewPrivs"] == "1"
    else:
        assert int(status["CapBnd"], 16) & ~sum(1 << n for n in _NUMBERS.values()) == 0


def test_system_calls_are_filtered(box: Speaker) -> None:
    assert status_of(box)["Seccomp"] == "2"


def test_calls_that_reach_past_the_sandbox_are_refused(box: Speaker) -> None:
    got = probes.results(probes.run(box, probes.CALLS))
    done = {name: said for name, said in got.items() if not _is_refusal(said)}
    assert done == {}
    assert len(got) > 40


def _is_refusal(said: str) -> bool:
    return said in {"EPERM", "EACCES", "ENOSYS", "EAFNOSUPPORT", "ESRCH"}


def test_the_kernels_switches_and_devices_do_not_open(box: Speaker) -> None:
    got = probes.results(probes.run(box, probes.OPENS))
    assert {name: said for name, said in got.items() if said == "done"} == {}
    assert len(got) > 30


def test_nothing_below_proc_sys_and_sys_opens_for_writing(box: Speaker) -> None:
    code = probes.WRITABLE.replace("TOPS", '["/proc/sys", "/sys"]')
    assert json.loads(probes.run(box, code)) == []


def test_devices_are_those_that_are_nobodys(box: Speaker) -> None:
    code = """
found = {}
for place, folders, files in os.walk("/dev"):
    for name in files:
        facts = os.stat(os.path.join(place, name), follow_symlinks=False)
        if facts.st_rdev:
            found[os.path.join(place, name)] = [os.major(facts.st_rdev), os.minor(facts.st_rdev)]
print(json.dumps(found))
"""
    # null, zero, full, random, urandom; tty, console, ptmx; pseudo-terminals.
    allowed = {(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2)}
    found = json.loads(probes.run(box, code))
    others = {
        path: number
        for path, number in found.items()
        if tuple(number) not in allowed and number[0] not in range(136, 144)
    }
    assert others == {}


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare"
)
def test_where_nothing_holds_them_the_probes_do_succeed() -> None:
    """Else they would prove nothing. Run as root, in namespaces of its own, so that no call of
    theirs reaches the machine.
    """
    own = ["mount", "pid", "fork", "ipc", "uts", "net", "cgroup", "mount-proc"]
    words = ["unshare", *(f"--{name}" for name in own)]
    got: dict[str, str] = {}
    for code in (probes.CALLS, probes.OPENS):
        text = probes.text_of(code)
        done = subprocess.run(
            [*words, sys.executable, "-c", text],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        got |= probes.results(done.stdout)
    refused = {name for name, said in got.items() if _is_refusal(said)}
    # What this kernel has not, or refuses to everybody.
    assert {name for name in refused if not name.startswith("/")} <= {
        "alg_socket",
        "vsock",
        "io_uring",
        "aio",
    }
    assert got["/proc/sys/kernel/core_pattern"] == got["/proc/1/mem read"] == "done"
