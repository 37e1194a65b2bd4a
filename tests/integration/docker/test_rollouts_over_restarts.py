"""Rollouts on an engine that stops, is killed and comes back, and under a daemon that is killed:
every call ends with its result or a named failure, nothing runs twice, nothing is left."""

from __future__ import annotations

import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import docker
import pytest

from sandboxd_client import LeaseEnded, Sandbox, Sandboxd, SandboxLost
from tests.conftest import EngineHost
from tests.faults.account import Extent, keep_account
from tests.faults.yards import DockerYard
from tests.support.docker_service import config_on, docker_service, pools
from tests.support.engine import TestEngine, engine, load_test_image, missing
from tests.support.service import Service

pytestmark = [
    pytest.mark.docker,
    pytest.mark.serial,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

_LOOK_S = 0.05
_TYPED_S = 30  # until a sandbox that went with its engine says so
_BACK_S = 60  # until the pool is full again, once the engine is back


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "live-restore"])
def own_engine(request: pytest.FixtureRequest) -> Iterator[tuple[TestEngine, str, bool]]:
    """An engine that may be stopped, an image on it, and whether its containers outlive it."""
    with engine(live_restore=request.param) as started:
        yield started, load_test_image(started, name="base"), request.param


def until(check: Callable[[], bool], *, within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(_LOOK_S)


def full(daemon: Service, ready: int, *, within_s: float = _BACK_S) -> None:
    def check() -> bool:
        pool = pools(daemon)["python"]
        return bool(pool["ready"] == ready and not pool["making"] and not pool["disposing"])

    until(check, within_s=within_s, what="the pool is full")


def alive(sandbox: Sandbox) -> bool:
    try:
        return sandbox.exec("echo here").stdout == "here\n"
    except SandboxLost as error:
        if (error.fault, error.mask) != ("infra", True):
            raise
        return False


def assert_all_lost(held: list[Sandbox]) -> None:
    """Each soon says that it went with its engine."""
    until(
        lambda: all(sandbox.info().state == "ended" for sandbox in held),
        within_s=_TYPED_S,
        what="every lease ended by name",
    )
    for sandbox in held:
        end = sandbox.info().end
        assert end is not None
        assert (end.reason, end.fault, end.mask) == ("node_lost", "infra", True), end
        assert not alive(sandbox)


def after_a_boot(folder: Path) -> list[str]:
    """Runs a command to which the machine was started anew since."""
    other = folder / "boot_id"
    other.write_text(f"{uuid4()}\n")
    shown = f"mount --bind {shlex.quote(str(other))} /proc/sys/kernel/random/boot_id"
    return ["unshare", "--mount", "sh", "-c", f'{shown} && exec "$@"', "sh"]


def box_of(sandbox: Sandbox) -> str:
    return next(str(line["box_id"]) for line in sandbox.logs() if line["event"] == "leased")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def race(api: docker.APIClient, container: str, sandbox: Sandbox, *, pause_s: float) -> str:
    """Stop the container a moment after a command is sent: what the command's caller was told."""

    def stop() -> None:
        time.sleep(pause_s)
        api.stop(container, timeout=0)

    stopping = threading.Thread(target=stop)
    stopping.start()
    began = time.monotonic()
    try:
        result = sandbox.exec("sleep 0.01; echo here", timeout_s=20)
        assert (result.outcome, result.exit_code, result.stdout) == ("exited", 0, "here\n"), result
        return "ran"
    except (SandboxLost, LeaseEnded) as error:
        if not error.mask:
            raise
        return "lost"
    finally:
        stopping.join()
        assert time.monotonic() - began < _TYPED_S


@pytest.mark.requirement("DK-01")
@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize(
    ("leases", "ready"), [(4, 3), pytest.param(20, 10, marks=pytest.mark.slow)]
)
def test_leases_go_on_or_end_by_name_when_the_engine_restarts_and_the_pool_comes_back(
    tmp_path: Path,
    own_engine: tuple[TestEngine, str, bool],
    how: str,
    leases: int,
    ready: int,
) -> None:
    started, image, restores = own_engine
    config = config_on(started.host, image, pool=f"ready = {ready}, max = {leases + 3 * ready}")
    with (
        docker_service(tmp_path, started.host, config) as (daemon, containers),
        Sandboxd(url=daemon.url) as client,
    ):
        full(daemon, ready)
        held = [client.lease("python", wait_timeout_s=60) for _ in range(leases)]
        full(daemon, ready)
        (started.stop if how == "stop" else started.kill)()
        started.start()
        began = time.monotonic()
        if restores:
            assert all(alive(sandbox) for sandbox in held)
        else:
            assert_all_lost(held)
        full(daemon, ready, within_s=_BACK_S - (time.monotonic() - began))
        with client.lease("python", wait_timeout_s=60) as sandbox:
            assert alive(sandbox)
        for sandbox in held:
            sandbox.release()
        full(daemon, ready)
        assert len(containers.box_ids()) == ready


@pytest.mark.requirement("DK-01")
@pytest.mark.parametrize(
    ("leases", "ready"), [(4, 3), pytest.param(20, 10, marks=pytest.mark.slow)]
)
def test_leases_end_by_name_when_their_host_went_down_and_the_pool_comes_back(
    tmp_path: Path, own_engine: tuple[TestEngine, str, bool], leases: int, ready: int
) -> None:
    started, image, _ = own_engine
    config = config_on(started.host, image, pool=f"ready = {ready}, max = {leases + 3 * ready}")
    with docker_service(tmp_path, started.host, config) as (daemon, containers):
        full(daemon, ready)
        with Sandboxd(url=daemon.url) as client:
            held = [client.lease("python", wait_timeout_s=60).id for _ in range(leases)]
        daemon.kill()
        started.power_off()
        started.start()
        daemon.start(within=after_a_boot(tmp_path))
        with Sandboxd(url=daemon.url) as client:
            assert_all_lost([client.sandbox(lease_id) for lease_id in held])
            full(daemon, ready)
            with client.lease("python", wait_timeout_s=60) as sandbox:
                assert alive(sandbox)
        full(daemon, ready)
        assert len(containers.box_ids()) == ready


@pytest.mark.slow
@pytest.mark.timeout(580)
def test_rollouts_over_an_engine_that_restarts_are_all_accounted_for(
    own_engine: tuple[TestEngine, str, bool],
) -> None:
    started, image, _ = own_engine
    extent = Extent(rounds=8, callers=5, engine_rounds=1.0)
    ledger = keep_account(DockerYard(started, image), extent=extent, seed=3)
    print(ledger)
    assert ledger.balanced, f"\n{ledger}"
    assert ledger.counts["commands answered"] > 0
    assert ledger.counts["engine stopped"] + ledger.counts["engine killed"] == 8


def test_kill_9_of_the_daemon_keeps_leases_running_commands_and_stock(
    tmp_path: Path, engine_host: EngineHost
) -> None:
    config = config_on(engine_host.host, engine_host.image, pool="ready = 2, max = 12")
    with docker_service(tmp_path, engine_host.host, config) as (daemon, containers):
        script = "for i in 1 2 3 4 5 6; do echo $i >> lines; echo $i; sleep 0.5; done; exit 7"
        with Sandboxd(url=daemon.url) as client:
            held = [client.lease("python", idempotency_key=f"k{i}") for i in range(3)]
            for sandbox in held:
                sandbox.start(["/bin/sh", "-c", script], exec_id="job")
            full(daemon, 2)
        before = containers.box_ids()
        daemon.kill()
        assert containers.box_ids() == before
        daemon.start()
        full(daemon, 2)
        assert containers.box_ids() == before, "stock was made anew, or lost"
        with Sandboxd(url=daemon.url) as client:
            for number, old in enumerate(held):
                again = client.lease("python", idempotency_key=f"k{number}")
                assert again.id == old.id
                result = again.process("job").wait()
                assert (result.outcome, result.exit_code) == ("exited", 7)
                assert result.stdout == "".join(f"{i}\n" for i in range(1, 7))
                lines = again.files.read("/workspace/lines")
                assert lines == "".join(f"{i}\n" for i in range(1, 7)).encode()
                again.release()
        full(daemon, 2)
        assert len(containers.box_ids()) == 2


@pytest.mark.slow
def test_forty_leases_on_an_engine_are_back_within_seconds(
    tmp_path: Path, engine_host: EngineHost
) -> None:
    config = config_on(engine_host.host, engine_host.image, pool="ready = 0, max = 40")
    with docker_service(tmp_path, engine_host.host, config) as (daemon, _):
        with Sandboxd(url=daemon.url) as client:
            held = [client.lease("python", wait_timeout_s=60).id for _ in range(40)]
        daemon.kill()
        began = time.monotonic()
        daemon.start()
        took = time.monotonic() - began
        print(f"40 leases were back in {took:.2f} s")
        assert took < 3
        with Sandboxd(url=daemon.url) as client:
            assert alive(client.sandbox(held[0]))
            assert len(client.sandboxes()) == 40


@pytest.mark.requirement("DK-08")
def test_a_sandbox_whose_shim_is_killed_ends_by_name_and_its_neighbour_lives(
    tmp_path: Path, own_engine: tuple[TestEngine, str, bool]
) -> None:
    started, image, _ = own_engine
    config = config_on(started.host, image, pool="ready = 0, max = 4")
    with (
        docker_service(tmp_path, started.host, config) as (daemon, containers),
        Sandboxd(url=daemon.url) as client,
        client.lease("python", wait_timeout_s=60) as lost,
        client.lease("python", wait_timeout_s=60) as neighbour,
    ):
        running = lost.start(["sleep", "60"])
        facts = containers.facts(box_of(lost))
        shim = parent(int(facts["State"]["Pid"]))
        words = Path(f"/proc/{shim}/cmdline").read_text().split("\0")
        assert facts["Id"] in words
        assert str(started.directory) in " ".join(words)
        os.kill(shim, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(SandboxLost) as caught:
            running.wait()
        assert caught.value.mask
        assert time.monotonic() - began < _TYPED_S
        end = lost.info().end
        assert end is not None
        assert end.reason in {"died", "node_lost"}
        assert end.mask
        assert alive(neighbour)


@pytest.mark.requirement("DK-08")
@pytest.mark.slow
@pytest.mark.timeout(580)
def test_a_container_that_is_stopped_just_as_a_command_starts_never_leaves_it_running(
    tmp_path: Path, engine_host: EngineHost
) -> None:
    config = config_on(engine_host.host, engine_host.image, pool="ready = 8, max = 12")
    with (
        docker_service(tmp_path, engine_host.host, config) as (daemon, containers),
        Sandboxd(url=daemon.url) as client,
        closing(docker.APIClient(base_url=engine_host.host)) as api,
    ):
        outcomes: dict[str, int] = {}
        for number in range(200):
            with client.lease("python", wait_timeout_s=60) as sandbox:
                container = containers.facts(box_of(sandbox))["Id"]
                told = race(api, container, sandbox, pause_s=(number % 20) / 1000)
                outcomes[told] = outcomes.get(told, 0) + 1
        assert sum(outcomes.values()) == 200
        assert set(outcomes) <= {"ran", "lost"}, outcomes
        full(daemon, 8)
