"""Kernels: what cells show comes back whole and in order, or says that some is missing."""

from __future__ import annotations

from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.support.cells import Kernel, check_outputs, leased, open_kernel

pytestmark = pytest.mark.timeout(180)


# KN-02


@pytest.mark.requirement("KN-02")
@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_kn_02_a_flood_of_lines_ends_with_its_last_and_all_in_order(
    kernel: Kernel, count: int
) -> None:
    code = f"for i in range({count}): print(i, flush=True)\nprint('LAST')"
    cell = kernel.run(code, timeout_s=150)
    assert cell["outcome"] == "ok"
    expected = "".join(f"{number}\n" for number in range(count)) + "LAST\n"
    assert cell["truncated"] or cell["stdout"] == expected
    assert cell["stdout"].endswith("LAST\n")
    if cell["truncated"]:
        _head_and_tail(cell["stdout"], expected)


def _head_and_tail(kept: str, whole: str) -> None:
    head, gap, tail = kept.partition("\n[… ")
    assert gap
    tail = tail.split("…]\n", 1)[1]
    assert whole.startswith(head)
    assert whole.endswith(tail)


@pytest.mark.requirement("KN-02")
@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_kn_02_thousands_of_displays_come_in_order(kernel: Kernel, count: int) -> None:
    cell = kernel.run(f"for i in range({count}): display(i)")
    shown = [output["data"]["text/plain"] for output in cell["outputs"]]
    assert cell["outcome"] == "ok"
    assert not cell["truncated"]
    assert shown == [str(number) for number in range(count)]


# KN-03

_IMAGES = """
import base64, os
from IPython.display import Image, display
for number in range(20):
    display({{"image/png": base64.b64encode(bytes([number]) * 80_000).decode()}}, raw=True)
{number}
"""


@pytest.mark.requirement("KN-03")
@pytest.mark.parametrize(
    ("cells", "sandboxes"), [(4, 2), pytest.param(60, 5, marks=pytest.mark.slow)]
)
def test_kn_03_cells_full_of_pictures_come_whole_from_many_sandboxes_at_once(
    http: httpx.Client, cells: int, sandboxes: int
) -> None:
    def draw(kernel: Kernel) -> list[dict[str, Any]]:
        return [kernel.run(_IMAGES.format(number=number)) for number in range(cells)]

    with ExitStack() as stack, ThreadPoolExecutor(sandboxes) as callers:
        kernels = [
            open_kernel(stack.enter_context(leased(http, resources={"memory_mb": 512})))
            for _ in range(sandboxes)
        ]
        for drawn in callers.map(draw, kernels):
            for number, cell in enumerate(drawn):
                assert cell["outcome"] == "ok"
                assert cell["duration_s"] < 5
                assert not cell["truncated"]
                *pictures, result = cell["outputs"]
                assert result["data"]["text/plain"] == str(number)
                assert [_first_byte(picture) for picture in pictures] == list(range(20))
            check_outputs(drawn[0]["outputs"])


def _first_byte(picture: dict[str, Any]) -> int:
    data: str = picture["data"]["image/png"]
    assert len(data) >= 80_000 * 4 // 3
    return b64decode(data[:4])[0]


# KN-14


@pytest.mark.requirement("KN-14")
def test_kn_14_a_progress_bar_is_whole_raw_and_its_last_state_as_text(kernel: Kernel) -> None:
    cell = kernel.run("for i in range(10_000): print(f'\\r{i}', end='')")
    raw = "".join(f"\r{number}" for number in range(10_000))
    assert cell["stdout"] == raw
    assert cell["outputs"] == [{"output_type": "stream", "name": "stdout", "text": raw}]
    assert cell["text"] == "9999"


@pytest.mark.requirement("KN-14")
def test_kn_14_of_frames_that_are_cleared_the_last_is_left(kernel: Kernel) -> None:
    cell = kernel.run(
        "from IPython.display import clear_output\n"
        "for i in range(200):\n  clear_output(wait=True); print('frame', i, 'x' * 100_000)"
    )
    last = "frame 199 " + "x" * 100_000 + "\n"
    assert cell["outputs"] == [{"output_type": "stream", "name": "stdout", "text": last}]
    assert cell["text"] == last
    assert cell["stdout"].endswith(last)
    assert cell["truncated"]  # as raw, it is beyond the bound
    assert len(cell["stdout"]) < (1 << 20) + 100


@pytest.mark.requirement("KN-14")
def test_kn_14_a_display_that_is_updated_is_shown_once_as_it_is_now(kernel: Kernel) -> None:
    code = "display(1, display_id='d'); update_display(2, display_id='d')"
    kernel.ok("from IPython.display import update_display")
    cell_id = kernel.start(code)
    cell = kernel.ended(cell_id)
    assert [output["data"] for output in cell["outputs"]] == [{"text/plain": "2"}]
    kinds = [event["type"] for event in kernel.events(cell_id)]
    assert kinds == ["started", "output", "update", "ended"]


# KN-17


@pytest.mark.requirement("KN-17")
def test_kn_17_what_is_written_below_pythons_stdout_is_the_cells(kernel: Kernel) -> None:
    cell_id = kernel.start(
        "import os, subprocess; os.write(1, b'raw\\n'); os.system('echo sys; echo e >&2');"
        " subprocess.run(['echo', 'sub']); None"
    )
    cell = kernel.ended(cell_id)
    assert sorted(cell["stdout"].splitlines()) == ["raw", "sub", "sys"]
    assert cell["stderr"] == "e\n"
    assert cell["late_outputs"] == []
    assert kernel.events(cell_id)[-1]["type"] == "ended"
