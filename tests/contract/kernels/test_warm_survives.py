"""Kernels that run before anybody leases their sandbox, and a daemon that dies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.contract.cases.houses import House, house
from tests.contract.columns import below_of
from tests.contract.speaker import Speaker, eventually
from tests.support.cells import Kernel, open_kernel

pytestmark = pytest.mark.timeout(120)

_SLOW = "cat > /tmp/modules/slow.py <<'END'\nimport time; time.sleep(2)\nEND"
_TEMPLATE = f"""
env = {{PYTHONPATH = "/tmp/modules", OVER = "template"}}
setup = ["mkdir /tmp/modules", {json.dumps(_SLOW)}]
kernels = ["python3"]
kernel_preload = ["slow"]
"""


@pytest.fixture
def open_house(
    tmp_path: Path, backend: str, request: pytest.FixtureRequest
) -> Callable[[], AbstractContextManager[House]]:
    """Opens a daemon whose template has a kernel that takes two seconds to be ready."""
    below = below_of(backend, request)
    return partial(house, tmp_path, below, pool="ready = 1, max = 4", template=_TEMPLATE)


@contextmanager
def caller(opened: House) -> Iterator[httpx.Client]:
    """Of the daemon that runs now."""
    with httpx.Client(base_url=opened.url, timeout=60) as http:
        yield http


def lease(http: httpx.Client, **fields: object) -> Speaker:
    response = http.post("/v1/sandboxes", json={"template": "python", **fields})
    assert response.status_code == 201, response.text
    return Speaker(http, f"/v1/sandboxes/{response.json()['id']}")


def test_stock_with_kernels_is_stock_for_the_next_daemon_too(
    open_house: Callable[[], AbstractContextManager[House]],
) -> None:
    with open_house() as opened:
        opened.full()
        boxes = opened.boxes()
        opened.service.kill()
        opened.service.start()
        opened.full()
        assert opened.boxes() == boxes
        with caller(opened) as http:
            kernel = open_kernel(lease(http))
            assert kernel.run("import sys; 'slow' in sys.modules")["text"] == "True"


def test_stock_whose_kernels_were_not_ready_is_removed(
    open_house: Callable[[], AbstractContextManager[House]],
) -> None:
    with open_house() as opened:
        eventually(lambda: len(opened.boxes()) == 1, within_s=20, what="a box is being made")
        unready = opened.boxes()
        assert opened.pool()["ready"] == 0
        opened.service.kill()
        opened.service.start()
        opened.full()
        assert not opened.boxes() & unready


def test_a_kernel_is_given_what_the_lease_brings_once_and_may_be_taken_later(
    open_house: Callable[[], AbstractContextManager[House]],
) -> None:
    with open_house() as opened:
        opened.full()
        brings = {"env": {"OVER": "lease"}}
        with caller(opened) as http:
            used, unused = lease(http, **brings), lease(http, **brings)
            kernel = open_kernel(used, kernel_id="mine")
            kernel.ok("import os; x = 5; os.environ['OVER'] = 'mine'; os.chdir('/')")
            (waits,) = unused.get("/kernels").json()["kernels"]
        opened.service.kill()
        opened.service.start()
        with caller(opened) as http:
            kernel = Kernel(Speaker(http, used.path), "mine")
            assert kernel.run("x, os.environ['OVER'], os.getcwd()")["text"] == "(5, 'mine', '/')"
            other = open_kernel(Speaker(http, unused.path))
            assert other.kernel_id == waits["kernel_id"]
            code = "import os, sys; os.environ['OVER'], 'slow' in sys.modules"
            assert other.run(code)["text"] == "('lease', True)"
