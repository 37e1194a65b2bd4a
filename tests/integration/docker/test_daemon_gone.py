"""What becomes of containers while no daemon runs, and of a set-up that was cut short."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxd_client import Sandbox, Sandboxd
from tests.conftest import EngineHost
from tests.support.docker_service import Containers, config_on, docker_service, pools

pytestmark = [pytest.mark.docker, pytest.mark.serial, pytest.mark.timeout(120)]

_LOOK_S = 0.05


def until(check: Callable[[], bool], *, within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(_LOOK_S)


def box_of(sandbox: Sandbox) -> str:
    return next(str(line["box_id"]) for line in sandbox.logs() if line["event"] == "leased")


def runs(containers: Containers, box_id: str) -> bool:
    return bool(containers.facts(box_id)["State"]["Running"])


def test_a_container_that_died_while_no_daemon_ran_is_told_as_dead_and_its_neighbour_lives(
    tmp_path: Path, engine_host: EngineHost
) -> None:
    config = config_on(engine_host.host, engine_host.image, pool="ready = 0, max = 4")
    with docker_service(tmp_path, engine_host.host, config) as (daemon, containers):
        with Sandboxd(url=daemon.url) as client:
            dead, alive = client.lease("python"), client.lease("python")
            box_id = box_of(dead)
        daemon.kill()
        assert containers.kill(box_id)
        until(lambda: not runs(containers, box_id), within_s=10, what="it ended")
        daemon.start()
        with Sandboxd(url=daemon.url) as client:
            end = client.sandbox(dead.id).info().end
            assert end is not None
            assert (end.reason, end.fault, end.mask) == ("died", "unknown", True)
            assert client.sandbox(alive.id).exec("echo ok").stdout == "ok\n"


@pytest.mark.requirement("CR-07")
def test_a_container_ends_at_its_hard_end_though_the_daemon_never_comes_back(
    tmp_path: Path, engine_host: EngineHost
) -> None:
    config = config_on(engine_host.host, engine_host.image, pool="ready = 0, max = 4")
    with docker_service(tmp_path, engine_host.host, config) as (daemon, containers):
        with Sandboxd(url=daemon.url) as client:
            sandbox = client.lease("python", timeout_s=1)
            sandbox.start(["sleep", "300"])
            box_id = box_of(sandbox)
        daemon.kill()
        until(lambda: not runs(containers, box_id), within_s=30, what="the guest ended itself")


def test_a_container_whose_set_up_was_cut_short_is_removed_and_never_leased(
    tmp_path: Path, engine_host: EngineHost
) -> None:
    begun = "touch /begun; sleep 3"
    config = config_on(
        engine_host.host,
        engine_host.image,
        pool="ready = 1, max = 4",
        of_template=f'setup = ["{begun}"]',
    )
    with docker_service(tmp_path, engine_host.host, config) as (daemon, containers):

        def in_the_middle() -> bool:
            return any(
                Path(f"/proc/{containers.pid(box_id)}/root/begun").exists()
                for box_id in containers.box_ids()
            )

        until(in_the_middle, within_s=30, what="a box is in the middle of its set-up")
        (before,) = containers.box_ids()
        daemon.kill()
        daemon.start()
        with Sandboxd(url=daemon.url) as client, client.lease("python") as sandbox:
            assert [line["event"] for line in sandbox.logs()] == ["setup", "leased"]
            assert box_of(sandbox) != before
        until(lambda: pools(daemon)["python"]["ready"] == 1, within_s=30, what="stock")
        assert before not in containers.box_ids()
