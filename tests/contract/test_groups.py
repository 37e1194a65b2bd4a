"""Groups on real sandboxes: all or none, though boxes and the daemon die in the middle."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandboxd_client import Sandboxd, SandboxdError
from tests.contract.cases.houses import House, house
from tests.contract.columns import below_of
from tests.contract.speaker import eventually

pytestmark = [pytest.mark.serial, pytest.mark.timeout(180)]

_GROUPS = 4
_HOLD_S = 0.3


@pytest.fixture
def size(backend: str) -> int:
    """Sandboxes in each group; the pool may have two groups' worth."""
    return 4 if backend == "local" else 2


@pytest.fixture
def opened(
    backend: str, size: int, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[House]:
    """A daemon of the test's own, without stock."""
    with house(tmp_path, below_of(backend, request), pool=f"ready = 0, max = {2 * size}") as found:
        yield found


class Told:
    """What the callers of the groups heard, and how many sandboxes they had at once."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.whole = 0
        self.refused: list[SandboxdError] = []
        self.most = 0
        self._held: set[str] = set()
        self._lock = threading.Lock()

    def rollout(self, url: str, name: str) -> None:
        """Lease a group, use all of it, and give it back."""
        with Sandboxd(url) as client:
            try:
                group = client.group("python", count=self.size, group_id=name)
            except SandboxdError as error:
                self.refused.append(error)
                return
            with group:
                with self._lock:
                    assert not self._held & {each.id for each in group}
                    self._held |= {each.id for each in group}
                    self.most = max(self.most, len(self._held))
                for sandbox in group:
                    with suppress(SandboxdError):  # the one that was killed
                        assert sandbox.exec("echo here").stdout == "here\n"
                time.sleep(_HOLD_S)
                with self._lock:
                    self._held -= {each.id for each in group}
            self.whole += 1


def states(url: str, name: str) -> list[str]:
    """Of the sandboxes of a group; none where there is no such group."""
    told = httpx.get(f"{url}/v1/groups/{name}", timeout=30)
    if told.status_code == 404:
        return []
    assert told.status_code == 200, told.text
    return [each["state"] for each in told.json()["sandboxes"]]


def ask(url: str, name: str, size: int) -> httpx.Response:
    """Ask for a group and do not wait for it."""
    order: dict[str, Any] = {"template": "python", "count": size, "group_id": name, "wait": False}
    return httpx.post(f"{url}/v1/groups", json=order, timeout=30)


def whole(url: str, name: str, size: int) -> bool:
    return states(url, name) == ["leased"] * size


def test_a_box_that_is_killed_while_groups_are_granted_leaves_all_or_none_of_each(
    opened: House, size: int
) -> None:
    told = Told(size)
    names = [f"g{number}" for number in range(_GROUPS)]
    with ThreadPoolExecutor(_GROUPS) as threads:
        waiting = [threads.submit(told.rollout, opened.url, name) for name in names]
        eventually(lambda: bool(opened.living()), within_s=30, what="the first box of a group")
        with suppress(ProcessLookupError, AssertionError):  # it was too young to be found
            opened.kill(min(opened.living()))
        for each in waiting:
            each.result(timeout=120)
    assert told.whole + len(told.refused) == _GROUPS
    assert len(told.refused) <= 1, "one death is one group's affair"
    assert all(error.mask for error in told.refused)
    assert told.most <= 2 * size
    opened.empty(within_s=60)
    for name in names:
        assert set(states(opened.url, name)) <= {"ended"}
    eventually(lambda: opened.boxes() == set(), within_s=30, what="nothing is left")
    assert opened.errors() == []


def test_a_daemon_that_is_killed_while_groups_wait_keeps_the_leased_ones_whole_and_no_others(
    opened: House, size: int
) -> None:
    names = [f"g{number}" for number in range(_GROUPS)]
    for name in names:
        assert ask(opened.url, name, size).status_code == 202
    held, waiting = names[:2], names[2:]
    for name in held:
        eventually(
            lambda name=name: whole(opened.url, name, size),  # type: ignore[misc]
            within_s=60,
            what=f"{name} is leased",
        )
    assert [set(states(opened.url, name)) for name in waiting] == [{"queued"}] * 2
    before = opened.boxes()
    opened.service.kill()
    assert opened.boxes() == before
    opened.service.start()
    assert all(whole(opened.url, name, size) for name in held)
    for name in waiting:
        assert states(opened.url, name) == ["ended"] * size
    assert len(opened.boxes()) == 2 * size
    with Sandboxd(opened.url) as client:
        for sandbox in client.sandboxes(group_id=held[0]):
            assert client.sandbox(sandbox.id).exec("echo here").stdout == "here\n"
        assert client.sandboxes(group_id=waiting[0]) == []

    assert ask(opened.url, "again", size).status_code == 202
    httpx.delete(f"{opened.url}/v1/groups/{held[0]}", timeout=30).raise_for_status()
    eventually(lambda: whole(opened.url, "again", size), within_s=60, what="its turn has come")
    for name in (held[1], "again"):
        httpx.delete(f"{opened.url}/v1/groups/{name}", timeout=30).raise_for_status()
    opened.empty(within_s=60)
    eventually(lambda: opened.boxes() == set(), within_s=30, what="nothing is left")
    assert opened.errors() == []


def test_a_daemon_that_is_killed_while_a_group_is_gathered_leaves_none_of_it(
    opened: House, size: int
) -> None:
    assert ask(opened.url, "g", 2 * size).status_code == 202
    eventually(lambda: bool(opened.living()), within_s=30, what="the first box of the group")
    opened.service.kill()
    opened.service.start()
    assert set(states(opened.url, "g")) in ({"leased"}, {"ended"})
    httpx.delete(f"{opened.url}/v1/groups/g", timeout=30).raise_for_status()
    opened.empty(within_s=60)
    eventually(lambda: opened.boxes() == set(), within_s=30, what="nothing is left")
    assert opened.errors() == []
