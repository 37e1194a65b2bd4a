"""What goes wrong with images, set-ups and engines, as a trainer meets it in the SDK: whose fault
it was, whether the rollout counts, whether to ask again, and what mends it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandboxd_client import Sandbox, Sandboxd, SandboxdError
from tests.conftest import EngineHost
from tests.support.docker_service import config_on, docker_service, pools
from tests.support.engine import engine, load_test_image, missing
from tests.support.service import Service

pytestmark = [
    pytest.mark.docker,
    pytest.mark.serial,
    pytest.mark.timeout(120),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

ROLLOUTS = 20
_NOBODY = "127.0.0.1:1"  # no registry listens there


def told(call: Callable[[], object]) -> SandboxdError:
    with pytest.raises(SandboxdError) as caught:
        call()
    return caught.value


def verdict(error: SandboxdError) -> tuple[str, str | None, bool, bool]:
    return error.code, error.fault, error.mask, error.retry_safe


def shown_by(daemon: Service, *words: str) -> str:
    """What the program prints."""
    environ = {**daemon.environ, "SANDBOXD_API_URL": daemon.url}
    command = [sys.executable, "-m", "sandboxd", *words]
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, check=True, timeout=30
    ).stdout


def test_what_a_lease_may_not_or_cannot_have_is_refused_each_by_its_own_name(
    tmp_path: Path, engine_host: EngineHost
) -> None:
    config = config_on(
        engine_host.host,
        engine_host.image,
        pool="ready = 0, max = 4",
        backend=f'allow_images = ["{_NOBODY}/*"]',
    )
    with (
        docker_service(tmp_path, engine_host.host, config) as (daemon, _),
        Sandboxd(url=daemon.url) as client,
    ):
        away = told(lambda: client.lease("python", image=f"{_NOBODY}/agent"))
        assert verdict(away) == ("image_unavailable", "infra", True, False)
        assert f"{_NOBODY}/agent" in str(away)
        assert "can the engine's machine reach it?" in str(away)
        refused = told(lambda: client.lease("python", image="somebody/elses"))
        assert verdict(refused) == ("forbidden", "client", True, True)
        assert "backend.docker.allow_images" in str(refused)
        for wish, words in (
            ({"runtime": "no-such-runtime"}, "there is: "),
            ({"resources": {"gpu": 1}}, "GPU"),
        ):
            cannot = told(lambda wish=wish: client.lease("python", **wish))  # type: ignore[misc]
            assert verdict(cannot) == ("not_supported", "client", True, True)
            assert words in str(cannot)
        with client.lease("python") as sandbox:
            assert sandbox.exec("true").exit_code == 0


def test_a_set_up_that_fails_is_the_tasks_fault_at_the_lease_its_log_and_its_pool(
    tmp_path: Path, engine_host: EngineHost
) -> None:
    said = "no such wheel"
    config = config_on(
        engine_host.host,
        engine_host.image,
        pool="ready = 0, max = 4",
        of_template=f"setup = {json.dumps(['true', f'echo {said} >&2; exit 3'])}",
    )
    with (
        docker_service(tmp_path, engine_host.host, config) as (daemon, containers),
        Sandboxd(url=daemon.url) as client,
    ):
        error = told(lambda: client.lease("python", wait_timeout_s=30))
        assert verdict(error) == ("start_failed", "task", True, False)
        assert str(error).endswith(f"exited with 3: {said}")
        (info,) = client.sandboxes(state="ended")
        assert info.end is not None
        assert (info.end.reason, info.end.fault, info.end.mask) == ("make_failed", "task", True)
        assert said in str(list(client.sandbox(info.id).logs()))
        assert said in str(pools(daemon)["python"]["last_error"])
        assert f"python: last error: {error}" in shown_by(daemon, "pools")
        assert containers.all() == []


@pytest.mark.requirement("DK-01")
def test_rollouts_whose_engine_is_stopped_are_masked_and_new_ones_told_to_come_again(
    tmp_path: Path,
) -> None:
    with engine() as own:
        image = load_test_image(own, name="base")
        config = config_on(own.host, image, pool=f"ready = 2, max = {ROLLOUTS + 4}")
        with (
            docker_service(tmp_path, own.host, config) as (daemon, _),
            Sandboxd(url=daemon.url) as client,
            ThreadPoolExecutor(ROLLOUTS) as threads,
        ):
            held = [client.lease("python", wait_timeout_s=60) for _ in range(ROLLOUTS)]
            all_run = threading.Barrier(ROLLOUTS + 1)
            ends = [threads.submit(roll_out, sandbox, all_run) for sandbox in held]
            all_run.wait(30)
            own.stop()
            for end in ends:
                error = end.result(30)
                assert verdict(error) == ("sandbox_lost", "infra", True, False)
                assert "the container engine was stopped" in str(error)
            refused = told(lambda: client.lease("python", wait_timeout_s=2))
            assert verdict(refused) == ("backend_unavailable", "infra", True, True)
            assert "(No such file or directory): is it running" in str(refused)
            assert "does not answer" in shown_by(daemon, "pools")
            own.start()
            with client.lease("python", wait_timeout_s=60) as sandbox:
                assert sandbox.exec("echo back").stdout == "back\n"


def roll_out(sandbox: Sandbox, all_run: threading.Barrier) -> SandboxdError:
    """Commands until one of them fails: how."""
    assert sandbox.exec("true").exit_code == 0
    all_run.wait(30)
    return told(lambda: go_on(sandbox))


def go_on(sandbox: Sandbox) -> None:
    while sandbox.exec("sleep 0.2").exit_code == 0:
        pass
