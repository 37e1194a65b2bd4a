"""How kernels die, and how much they may say: every end has a name, soon, and output has bounds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.contract.speaker import Speaker, eventually, problem, rss_bytes
from tests.support.cells import Kernel, open_kernel
from tests.support.daemon import RunningDaemon
from tests.support.limits import READ_LIMITS, assert_held

pytestmark = pytest.mark.timeout(180)

_MB = 1 << 20
_LIFE_S = 120  # the watchdog: whatever a test forgets is over by then
_HOG = "held = [bytearray(1 << 24) for _ in range(10_000)]"
_BY_CHILD = "import os, subprocess; subprocess.run(['kill', '-9', str(os.getpid())])"
_FILL = """
import os
try:
    with open('{path}', 'wb', buffering=0) as file:
        for _ in range({mb}): file.write(bytes(1 << 20))
except OSError as error: print(error)
print('after')
"""


@pytest.fixture
def limited(http: httpx.Client, can: dict[str, Any]) -> Iterator[Speaker]:
    """A sandbox that may be attacked from inside: its limits hold."""
    asked = {"memory_mb": 256, "pids": 96, "disk_mb": 64}
    order = {"template": "python", "resources": asked, "timeout_s": _LIFE_S}
    made = Speaker(http, f"/v1/sandboxes/{http.post('/v1/sandboxes', json=order).json()['id']}")
    try:
        pids = asked["pids"] if can["limits"]["pids"] == "enforced" else None
        assert_held(made.exec(READ_LIMITS)["stdout"], pids=pids, memory_mb=asked["memory_mb"])
        yield made
    finally:
        http.delete(made.path)


def died(cell: dict[str, Any]) -> None:
    assert (cell["outcome"], cell["fault"], cell["mask"]) == ("died", "agent", False), cell


@pytest.mark.parametrize("code", ["import os; os._exit(0)", "import os; os._exit(7)", _BY_CHILD])
def test_a_kernel_that_ends_under_its_cell_has_died(kernel: Kernel, code: str) -> None:
    began = time.monotonic()
    died(kernel.run(f"print('before', flush=True)\n{code}"))
    assert time.monotonic() - began < 5
    problem(kernel.call("execute", code="1"), 409, "kernel_died")
    problem(kernel.call("complete", code="1"), 409, "kernel_died")
    assert kernel.call("restart").json()["state"] == "idle"
    assert kernel.ok("1") == "1"


def test_what_was_printed_before_a_death_is_kept_and_what_waits_is_refused(kernel: Kernel) -> None:
    code = "import os, sys, time; print('last words', flush=True); time.sleep(0.5); os._exit(1)"
    dying = kernel.start(code)
    waiting = kernel.start("1")
    cell = kernel.ended(dying)
    died(cell)
    assert cell["stdout"] == "last words\n"
    problem(kernel.sandbox.get(f"{kernel.path}/cells/{waiting}"), 409, "kernel_died")


def test_a_cell_that_is_killed_from_outside_its_kernel_has_died(kernel: Kernel) -> None:
    pid = kernel.ok("import os; print(os.getpid())").strip()
    cell_id = kernel.start("import time; time.sleep(100)")
    kernel.running(cell_id)
    kernel.sandbox.exec(["kill", "-9", pid])
    died(kernel.ended(cell_id))
    assert kernel.sandbox.exec("echo works")["stdout"] == "works\n"


def test_an_idle_kernel_that_dies_is_dead_for_whoever_comes_next(kernel: Kernel) -> None:
    pid = kernel.ok("import os; print(os.getpid())").strip()
    kernel.sandbox.exec(["kill", "-9", pid])
    eventually(lambda: kernel.shown()["state"] == "dead", within_s=5, what="it is seen dead")
    problem(kernel.call("execute", code="1"), 409, "kernel_died")
    problem(kernel.call("interrupt"), 409, "kernel_died")


def test_children_of_a_kernel_that_died_are_no_obstacle_to_its_restart(kernel: Kernel) -> None:
    died(kernel.run("import os, subprocess; subprocess.Popen(['sleep', '2025']); os._exit(1)"))
    assert kernel.call("restart").status_code == 200
    assert kernel.ok("1") == "1"


def test_a_kernel_that_takes_all_memory_has_died_of_it_and_its_sandbox_lives(
    limited: Speaker,
) -> None:
    kernel, other = open_kernel(limited), open_kernel(limited)
    other.ok("kept = 1")
    cell = kernel.run(_HOG, timeout_s=60)
    died(cell)
    body = problem(kernel.call("execute", code="1"), 409, "kernel_died")
    assert body["details"]["outcome"] == "oom"
    assert limited.exec("echo works")["stdout"] == "works\n"
    assert other.ok("kept") == "1"
    assert kernel.call("restart").status_code == 200
    assert kernel.ok("1") == "1"


def test_a_full_file_system_is_the_cells_own_error_and_cells_run_on(
    limited: Speaker, backend: str
) -> None:
    if backend == "kubernetes":
        pytest.skip("nodes before Kubernetes 1.22, as the tests' own, size no volume in memory")
    kernel = open_kernel(limited)
    assert "No space left" in kernel.ok(_FILL.format(path="/dev/shm/full", mb=200))
    assert kernel.ok("1 + 1") == "2"
    assert kernel.ok("import os; os.remove('/dev/shm/full')") == ""


def test_a_disk_that_a_cell_fills_ends_the_cell_or_the_sandbox_by_name(limited: Speaker) -> None:
    kept = limited.get("").json()["limits"]["disk"]
    if kept == "none":
        pytest.skip("this machine neither keeps nor watches a limit of disk")
    kernel = open_kernel(limited)
    code = _FILL.format(path="/workspace/full", mb=80)
    if kept == "enforced":
        assert "No space left" in kernel.ok(code, timeout_s=60)
        return
    began = time.monotonic()
    told = kernel.call("execute", code=f"{code}\nimport time; time.sleep(60)", timeout_s=60)
    assert time.monotonic() - began < 40
    body = problem(told, 410, "sandbox_lost")
    assert (body["fault"], body["mask"]) == ("agent", False)
    end = body["details"]["end"]
    assert (end["reason"], end["code"]) == ("disk", "disk_full")


@pytest.mark.parametrize("ends", ["timeout", "interrupt"])
def test_a_kernel_that_does_not_survive_an_interrupt_is_started_anew(
    liar: Kernel, ends: str
) -> None:
    sleeps = json.dumps([{"sleep": 100}])
    cell_id = liar.start(sleeps, timeout_s=0.5 if ends == "timeout" else 60)
    if ends == "interrupt":
        liar.running(cell_id)
        assert liar.call("interrupt").status_code == 200
    cell = liar.ended(cell_id)
    outcome = "timeout" if ends == "timeout" else "interrupted"
    assert (cell["outcome"], cell["kernel_restarted"]) == (outcome, True)
    assert liar.run("works")["stdout"] == "works"


def test_a_cell_that_ignores_a_callers_interrupt_is_ended_by_a_restart(kernel: Kernel) -> None:
    loop = "while True:\n  try: print('deaf'); time.sleep(0.1)\n  except BaseException: pass"
    cell_id = kernel.start(f"import time\n{loop}")
    eventually(lambda: bool(kernel.cell(cell_id)["stdout"]), within_s=10, what="it is deaf by now")
    began = time.monotonic()
    kernel.call("interrupt")
    cell = kernel.ended(cell_id, within_s=30)
    assert 9 < time.monotonic() - began < 25
    assert (cell["outcome"], cell["kernel_restarted"]) == ("interrupted", True)
    assert kernel.ok("1") == "1"


# Output.


@pytest.mark.serial
@pytest.mark.parametrize(
    "code",
    [
        "print('x' * (20 << 20))",
        "import sys\nfor _ in range(20 << 4): sys.stdout.write('x' * 65535 + '\\n')",
    ],
    ids=["at once", "in lines"],
)
def test_twenty_megabytes_are_bounded_marked_and_not_held(
    kernel: Kernel, daemon: RunningDaemon, code: str
) -> None:
    kernel.ok("1")
    before = rss_bytes(daemon.pid)
    cell = kernel.run(code, timeout_s=60)
    assert cell["outcome"] == "ok"
    assert cell["truncated"]
    assert len(cell["stdout"]) < _MB + 100
    assert "characters are missing here" in cell["stdout"]
    assert cell["stdout"].strip("x\n").startswith("[… ")
    assert rss_bytes(daemon.pid) - before < 32 * _MB


def test_one_message_that_is_too_large_is_missing_and_that_is_told(kernel: Kernel) -> None:
    cell = kernel.run("print('a' * (40 << 20), flush=True); print('LAST')", timeout_s=60)
    assert cell["outcome"] == "ok"
    assert cell["truncated"]
    assert cell["stdout"].endswith("LAST\n")
    assert kernel.ok("1") == "1"


def test_an_error_that_is_too_large_is_an_error_all_the_same(kernel: Kernel) -> None:
    cell = kernel.run("raise ValueError('a' * (40 << 20))", timeout_s=60)
    assert (cell["outcome"], cell["truncated"], cell["kernel_restarted"]) == ("error", True, False)
    assert kernel.ok("1") == "1"


def test_what_a_reader_missed_of_a_flood_is_counted_in_its_events(liar: Kernel) -> None:
    said = {"say": "stream", "content": {"name": "stdout", "text": "y" * 1000}, "times": 12_000}
    steps = [
        said,
        {"say": "execute_reply", "on": "shell", "content": {"status": "ok"}},
        {"say": "status", "content": {"execution_state": "idle"}},
    ]
    cell_id = liar.start(json.dumps(steps))
    assert liar.ended(cell_id, within_s=60)["truncated"]
    seen = liar.events(cell_id)
    assert seen[0]["type"] == "gap"
    at = 0
    for event in seen:
        at += event.get("events", 1) if event["type"] == "gap" else 1
        assert event["seq"] == at
    assert seen[-1]["type"] == "ended"


@pytest.mark.parametrize("change", ["show", "clear", "update"])
def test_a_display_that_changes_ten_thousand_times_is_shown_as_it_is_at_last(
    kernel: Kernel, change: str
) -> None:
    show: dict[str, str] = {
        "show": "display(i)",
        "clear": "clear_output(wait=True); display(i)",
        "update": "update_display(i, display_id='d')",
    }
    code = (
        "from IPython.display import clear_output, display, update_display\n"
        f"display(0, display_id='d')\nfor i in range(2_000): {show[change]}"
    )
    cell = kernel.run(code, timeout_s=60)
    assert cell["outputs"][-1]["data"] == {"text/plain": "1999"}
    assert len(cell["outputs"]) == {"show": 2001, "clear": 1, "update": 1}[change]
    assert not cell["truncated"]


def test_a_line_that_is_overwritten_half_a_million_times_blocks_nobody(
    kernel: Kernel, longest_wait: Callable[[Callable[[], object]], float]
) -> None:
    code = "print('x' * 400_000 + '\\ry' * 250_000, end='')"
    waited = longest_wait(lambda: kernel.run(code, timeout_s=60))
    assert waited < 1.0
    assert kernel.run("1")["text"] == "1"


@pytest.fixture
def longest_wait(daemon: RunningDaemon) -> Callable[[Callable[[], object]], float]:
    """How long a short call waits at most while something else goes on."""

    def measure(act: Callable[[], object]) -> float:
        longest = 0.0
        with ThreadPoolExecutor(1) as worker, httpx.Client(base_url=daemon.url) as http:
            acting = worker.submit(act)
            while not acting.done():
                began = time.monotonic()
                assert http.get("/v1/version", timeout=30).status_code == 200
                longest = max(longest, time.monotonic() - began)
            acting.result()
        return longest

    return measure
