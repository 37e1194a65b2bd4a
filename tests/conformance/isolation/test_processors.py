"""A sandbox runs on as many processors as its share, so that programs inside count that many."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.conformance.isolation.conftest import Yard
from tests.support.service import service

pytestmark = pytest.mark.timeout(60)

_COUNT = os.cpu_count() or 1


def processors(said: str) -> tuple[int, ...]:
    found = re.search(r"Cpus_allowed_list:\s*(\S+)", said)
    assert found
    numbers: list[int] = []
    for part in found[1].split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)


def need_one_machine(yard: Yard) -> None:
    if yard.name == "kubernetes":
        pytest.skip("sandboxes are on many machines, which run other pods too")


@pytest.mark.parametrize("cpu", [0.25, 1.0, 1.5])
def test_what_is_counted_inside_is_the_share_rounded_up(yard: Yard, cpu: float) -> None:
    need_one_machine(yard)
    if cpu > _COUNT:
        pytest.skip("this machine has fewer processors")
    box = yard.lease("root", resources={"cpu": cpu})
    wanted = min(math.ceil(cpu), _COUNT)
    assert box.exec("nproc")["stdout"] == f"{wanted}\n"
    assert len(processors(box.exec("cat /proc/self/status")["stdout"])) == wanted
    yard.http.delete(box.path, params={"wait_s": 20})


@pytest.mark.skipif(_COUNT < 2, reason="one processor")
def test_sandboxes_are_spread_over_the_processors(yard: Yard) -> None:
    need_one_machine(yard)
    boxes = [yard.lease("root", resources={"cpu": 1.0, "memory_mb": 64}) for _ in range(4)]
    load = Counter(
        number
        for box in boxes
        for number in processors(box.exec("cat /proc/self/status")["stdout"])
    )
    for box in boxes:
        yard.http.delete(box.path, params={"wait_s": 20})
    assert sum(load.values()) == 4
    assert max(load.values()) == math.ceil(4 / _COUNT)


CONFIG = """
[backend]
bind_cpus = {bind}
[templates.python]
image = "host"
resources = {{cpu = 1.0, memory_mb = 64}}
pool = {{ready = 2, max = 8}}
"""


@pytest.mark.skipif(_COUNT < 2, reason="one processor")
def test_it_can_be_switched_off_and_is_remembered_over_a_restart(tmp_path: Path) -> None:
    with service(tmp_path, config=CONFIG.format(bind="true")) as daemon:

        def where(path: str = "") -> tuple[str, tuple[int, ...]]:
            with httpx.Client(base_url=daemon.url, timeout=30) as http:
                if not path:
                    path = (
                        "/v1/sandboxes/"
                        + http.post("/v1/sandboxes", json={"template": "python"}).json()["id"]
                    )
                said = http.post(f"{path}/execs", json={"cmd": "cat /proc/self/status"}).json()
                return path, processors(said["stdout"])

        first, bound = where()
        assert len(bound) == 1
        daemon.kill()
        daemon.start()
        assert where(first)[1] == bound
        others = {where()[1] for _ in range(min(_COUNT, 4) - 1)}
        assert bound not in others  # the one that was adopted is counted
        daemon.stop()
        (tmp_path / "sandboxd.toml").write_text(CONFIG.format(bind="false"))
        daemon.start()
        assert where(first)[1] == bound
        assert len(where()[1]) == len(os.sched_getaffinity(0))
