"""Kernels: cells that end once and rightly, whatever they do to their kernel.

Most rows need two or three kernels, in 512 MB; those that need dozens lease a larger sandbox.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.contract.cases.times import scaled
from tests.contract.speaker import Speaker, eventually, problem
from tests.support.cells import Kernel, add_liar, add_spec, leased, open_kernel

pytestmark = pytest.mark.timeout(180)

_MOST_KERNELS = 32
_BUSY_FACTOR = 3  # this machine does other things too


def large(memory_mb: int) -> dict[str, Any]:
    return {"resources": {"memory_mb": memory_mb, "pids": 2000}}


def took(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


# KN-01


@pytest.mark.requirement("KN-01")
@pytest.mark.parametrize(
    "code",
    [
        "import os; os.kill(os.getpid(), 9)",
        "import os; os._exit(0)",
        "import ctypes; ctypes.string_at(0)",
    ],
    ids=["killed", "exit", "segv"],
)
def test_kn_01_a_kernel_that_dies_under_a_cell_is_told_and_nothing_else_dies(
    roomy: Speaker, code: str
) -> None:
    kernel, other = open_kernel(roomy), open_kernel(roomy)
    other.ok("kept = 7")
    began = time.monotonic()
    cell = kernel.run(code)
    assert time.monotonic() - began < 5
    assert (cell["outcome"], cell["fault"], cell["mask"]) == ("died", "agent", False)
    body = problem(kernel.call("execute", code="1"), 409, "kernel_died")
    assert (body["fault"], body["mask"]) == ("agent", False)
    assert kernel.shown()["state"] == "dead"
    assert roomy.exec("echo works")["stdout"] == "works\n"
    assert other.ok("kept") == "7"
    assert took(lambda: kernel.call("restart").raise_for_status()) < 10
    assert kernel.ok("1 + 1") == "2"


@pytest.mark.requirement("KN-01")
def test_kn_01_a_cell_that_asks_python_to_exit_is_an_error_and_the_kernel_lives(
    kernel: Kernel,
) -> None:
    kernel.ok("kept = 7")
    cell = kernel.run("import sys; sys.exit(3)")
    assert (cell["outcome"], cell["error"]["ename"]) == ("error", "SystemExit")
    assert (cell["error"]["evalue"], cell["kernel_restarted"]) == ("3", False)
    assert kernel.ok("kept") == "7"


# KN-05


@pytest.mark.requirement("KN-05")
@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("!sleep 1000", None),  # which IPython itself ends quietly
        ("import subprocess; subprocess.run(['sleep', '1001'])", "KeyboardInterrupt"),
    ],
)
def test_kn_05_an_interrupt_ends_the_program_that_a_cell_waits_for(
    kernel: Kernel, code: str, error: str | None
) -> None:
    kernel.ok("kept = 7")
    cell_id = kernel.start(code)
    eventually(lambda: _sleeps(kernel) == 1, within_s=10, what="it sleeps")
    began = time.monotonic()
    assert kernel.call("interrupt").status_code == 200
    cell = kernel.ended(cell_id)
    assert time.monotonic() - began < 5
    assert (cell["outcome"], cell["kernel_restarted"]) == ("interrupted", False)
    assert (cell["error"] and cell["error"]["ename"]) == error
    assert _sleeps(kernel) == 0
    assert kernel.ok("kept") == "7"


def _sleeps(kernel: Kernel) -> int:
    return sum(line.startswith("sleep 100") for line in kernel.sandbox.processes("sleep 100"))


# KN-07

_STUBBORN = "import time\nwhile True:\n  try: time.sleep({s})\n  except KeyboardInterrupt: pass"


@pytest.mark.requirement("KN-07")
@scaled(1 / 5)
@pytest.mark.parametrize("code", [_STUBBORN, "10**10**9"], ids=["catches", "native"])
def test_kn_07_what_cannot_be_interrupted_is_ended_by_a_restart_that_is_told(
    kernel: Kernel, code: str, scale: float
) -> None:
    kernel.ok("lost = 7")
    timeout_s = 3 * scale
    began = time.monotonic()
    cell = kernel.run(code.replace("{s}", str(scale)), timeout_s=timeout_s)
    assert time.monotonic() - began < timeout_s + 15
    # Some Pythons can interrupt what is native here; whether they could is told.
    assert cell["kernel_restarted"] or code != _STUBBORN
    assert (cell["outcome"], cell["fault"], cell["mask"]) == ("timeout", "agent", False)
    assert kernel.ok("'lost' in globals()") == str(not cell["kernel_restarted"])


@pytest.mark.requirement("KN-07")
def test_kn_07_what_can_be_interrupted_at_its_time_keeps_its_kernel(kernel: Kernel) -> None:
    kernel.ok("kept = 7")
    cell = kernel.run("print('begun'); import time; time.sleep(1000)", timeout_s=0.5)
    assert (cell["outcome"], cell["kernel_restarted"]) == ("timeout", False)
    assert (cell["stdout"], cell["duration_s"] < 5) == ("begun\n", True)
    assert kernel.ok("kept") == "7"


# KN-08

_THREAD = """
import threading, time
def talk():
    for number in range(50):
        print('T', number, flush=True)
        time.sleep({s})
threading.Thread(target=talk).start()
"""


@pytest.mark.requirement("KN-08")
@scaled(1 / 5)
def test_kn_08_what_a_thread_prints_after_its_cell_is_that_cells_and_late(
    kernel: Kernel, scale: float
) -> None:
    cell_id = kernel.start(_THREAD.format(s=0.1 * scale))
    first = kernel.ended(cell_id, within_s=2)
    kernel.ok(f"import time; time.sleep({scale})")
    for line in ("clean", "end"):
        began = time.monotonic()
        cell = kernel.run(f"print({line!r})")
        assert time.monotonic() - began < 2
        assert cell["stdout"] == f"{line}\n"
        assert cell["outputs"] == [{"output_type": "stream", "name": "stdout", "text": f"{line}\n"}]
        assert not cell["late"]
    events = kernel.events(cell_id)

    def all_of_it() -> bool:
        cell = kernel.cell(cell_id)
        late = "".join(output["text"] for output in cell["late_outputs"])
        return bool(cell["stdout"] + late == "".join(f"T {n}\n" for n in range(50)))

    eventually(all_of_it, within_s=5 * scale + 10, what="each line is the first cell's")
    after = kernel.cell(cell_id)
    assert after["late"]
    assert after["stdout"] == first["stdout"]
    assert [e["type"] for e in kernel.events(cell_id)] == [e["type"] for e in events]
    assert events[-1]["type"] == "ended"


# KN-09


@pytest.mark.requirement("KN-09")
@pytest.mark.parametrize(
    "code", ["input('?')", "import getpass; getpass.getpass()", "breakpoint()", "%debug"]
)
def test_kn_09_a_cell_that_asks_nobody_ends_in_that_error(kernel: Kernel, code: str) -> None:
    kernel.run("kept = 7; 1 / 0")
    began = time.monotonic()
    cell = kernel.run(code)
    assert time.monotonic() - began < 5
    # ipykernel's own `breakpoint` waits for no input where no debugger is attached: it goes on.
    if code != "breakpoint()" or cell["outcome"] != "ok":
        assert (cell["outcome"], cell["error"]["ename"]) == ("error", "StdinNotImplementedError")
    assert kernel.ok("kept") == "7"


# KN-11


@pytest.mark.requirement("KN-11")
@pytest.mark.parametrize(
    ("sandboxes", "each", "restarts"),
    [(2, 3, 1), pytest.param(6, 10, 10, marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def test_kn_11_kernels_that_start_together_do_not_clash(
    http: httpx.Client, sandboxes: int, each: int, restarts: int
) -> None:
    def restarted(kernel: Kernel) -> str:
        for number in range(restarts):
            response = kernel.call("restart")
            assert response.status_code == 200, response.text
            assert kernel.ok(f"{number} * 2") == str(number * 2)
        return kernel.kernel_id

    with ExitStack() as stack, ThreadPoolExecutor(sandboxes * each) as callers:
        homes = [stack.enter_context(leased(http, **large(120 * each))) for _ in range(sandboxes)]
        began = time.monotonic()
        kernels = list(callers.map(open_kernel, homes * each))
        assert time.monotonic() - began < 60
        assert len(set(callers.map(restarted, kernels))) == sandboxes * each


# KN-15


@pytest.mark.requirement("KN-15")
@pytest.mark.parametrize(
    ("spec", "count"),
    [("liar", 60), pytest.param("python3", 100, marks=[pytest.mark.slow])],
)
def test_kn_15_kernels_that_come_and_go_leave_nothing(
    http: httpx.Client, spec: str, count: int
) -> None:
    def use(home: Speaker) -> float:
        began = time.monotonic()
        kernel = open_kernel(home, spec)
        kernel.ok("1")
        assert home.http.delete(home.path + kernel.path).status_code == 204
        return time.monotonic() - began

    with leased(http, **large(1024)) as home, ThreadPoolExecutor(5) as callers:
        add_liar(home)
        use(home)
        before, processes = _memory(home), len(home.processes("kernel"))
        times = list(callers.map(use, [home] * count))
        half = count // 2
        assert sum(times[half:]) < 2 * sum(times[:half]) * _BUSY_FACTOR
        assert home.get("/kernels").json()["kernels"] == []
        assert len(home.processes("kernel")) == processes
        assert _memory(home) < before + (32 << 20)


def _memory(sandbox: Speaker) -> int:
    """What all processes inside hold for themselves."""
    seen = sandbox.exec("cat /proc/[0-9]*/smaps_rollup 2>/dev/null | grep -E '^Private_'")
    return sum(int(line.split()[1]) << 10 for line in str(seen["stdout"]).splitlines())


@pytest.mark.requirement("KN-15")
@pytest.mark.parametrize(
    "spec", ["liar", pytest.param("python3", marks=[pytest.mark.slow, pytest.mark.timeout(400)])]
)
def test_kn_15_too_many_kernels_are_refused_by_number_and_the_others_answer(
    http: httpx.Client, spec: str
) -> None:
    with leased(http, **large(4096)) as home:
        add_liar(home)
        kernels = [open_kernel(home, spec) for _ in range(_MOST_KERNELS)]
        for _ in range(200 - _MOST_KERNELS):
            answer = home.post("/kernels", {"spec": spec})
            assert str(_MOST_KERNELS) in problem(answer, 409, "conflict")["detail"]
        assert all(kernel.run("7")["outcome"] == "ok" for kernel in kernels)
        home.http.delete(home.path + kernels[0].path)
        assert open_kernel(home, spec).run("8")["outcome"] == "ok"


# KN-16

_OPENED = (
    'cat /proc/net/snmp | awk \'$1 == "Tcp:" {t = $6} $1 == "Udp:" {u = $5} END {print t, u}\''
)


@pytest.mark.requirement("KN-16")
def test_kn_16_a_kernel_starts_without_network_and_soon(http: httpx.Client) -> None:
    with leased(http, network="none") as home:
        before = home.exec(_OPENED)["stdout"]
        began = time.monotonic()
        assert open_kernel(home).ok("1 + 1") == "2"
        assert time.monotonic() - began < 20
        began = time.monotonic()
        assert open_kernel(home).ok("1 + 1") == "2"
        assert time.monotonic() - began < 2 * _BUSY_FACTOR
        assert home.exec(_OPENED)["stdout"] == before


@pytest.mark.requirement("KN-16")
@pytest.mark.parametrize("spec", ["no-such-kernel", "bare"])
def test_kn_16_a_kernel_that_the_image_lacks_is_refused_by_name(roomy: Speaker, spec: str) -> None:
    add_spec(roomy, "bare", ["python3", "-S", "-m", "ipykernel_launcher", "-f"], {})
    body = problem(roomy.post("/kernels", {"spec": spec}), 502, "start_failed")
    assert (body["fault"], body["mask"]) == ("task", True)
    assert spec in body["detail"]
    assert roomy.exec("echo works")["stdout"] == "works\n"
