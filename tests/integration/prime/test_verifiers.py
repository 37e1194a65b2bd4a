"""verifiers 0.4 with its own program and its bash harness, unmodified, and what becomes of its
rollouts when things break under them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.support.foreign.breaking import breaking, kill_the_leased_box, leased
from tests.support.foreign.evals import SCRIPT, Evaluated, evaluate, template_for_harnesses
from tests.support.foreign.openai_server import Script, scripted_model
from tests.support.nginx import nginx, timed
from tests.support.pages import free_port
from tests.support.service import Service, service

# Making an environment of foreign packages takes a minute, once.
pytestmark = pytest.mark.timeout(400)


@dataclass(frozen=True, slots=True)
class House:
    """A daemon for evaluations. port: where their interception server listens."""

    daemon: Service
    port: int
    folder: Path

    def evaluate(
        self, script: Script, *, rollouts: int = 1, at: str = "", within_s: float = 150
    ) -> Evaluated:
        """Rollouts whose model says that. at: another address of the daemon."""
        with scripted_model(script) as model:
            return evaluate(
                self.folder, daemon=at or self.daemon.url, model=model.url, model_port=self.port,
                rollouts=rollouts, within_s=within_s,
            )  # fmt: skip


@contextmanager
def house(
    folder: Path, *, pool: str = "{ready = 1, max = 8}", port: int = 0, public_url: str = ""
) -> Iterator[House]:
    """port: of the daemon, which keeps it when it is started again."""
    model_port = free_port()
    config = template_for_harnesses(model_port=model_port, pool=pool)
    config += f'\n[server]\npublic_url = "{public_url}"\n'
    with service(folder, config=config, port=port or free_port()) as running:
        yield House(running, model_port, folder)


def test_a_rollout_of_the_bash_harness_is_rewarded(tmp_path: Path) -> None:
    with house(tmp_path) as opened:
        done = opened.evaluate(SCRIPT)
        left = httpx.get(f"{opened.daemon.url}/v1/sandboxes").json()["sandboxes"]
    assert (done.scores, done.errors) == ([1.0], []), done.said
    assert left == []


@pytest.mark.requirement("HT-08")
def test_a_sandbox_that_is_killed_under_a_rollout_ends_it_in_an_error_of_infrastructure(
    tmp_path: Path,
) -> None:
    with house(tmp_path) as opened:
        kill = partial(kill_the_leased_box, opened.daemon)
        done = opened.evaluate(breaking(SCRIPT, kill))
    assert (done.scores, done.errors) == ([], ["SandboxError"]), done.said


@pytest.mark.slow
def test_a_sandbox_that_is_taken_away_ends_its_rollout_the_same(tmp_path: Path) -> None:
    with house(tmp_path) as opened:
        url = opened.daemon.url

        def release() -> None:
            httpx.delete(f"{url}/v1/sandboxes/{leased(opened.daemon)}")

        done = opened.evaluate(breaking(SCRIPT, release))
    assert (done.scores, done.errors) == ([], ["SandboxError"]), done.said


@pytest.mark.slow
def test_a_daemon_that_is_killed_and_started_again_costs_no_rollout_its_truth(
    tmp_path: Path,
) -> None:
    """The commands live on: it is rewarded for what it did, or ends in an error of its
    infrastructure; never is it scored for less.
    """
    with house(tmp_path) as opened:

        def restart() -> None:
            opened.daemon.kill()
            opened.daemon.start()

        done = opened.evaluate(breaking(SCRIPT, restart))
    assert (done.scores, done.errors) in (([1.0], []), ([], ["SandboxError"])), done.said


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(900)
def test_sixty_four_rollouts_at_once_are_all_rewarded_and_nothing_of_ours_takes_long(
    tmp_path: Path,
) -> None:
    """Behind a proxy, which writes down how long each request took. A command's own lasts as long
    as the command, which shares this machine's processors with all those agents.
    """
    port = free_port()
    (tmp_path / "nginx").mkdir()
    front = timed(f"http://127.0.0.1:{port}", log=tmp_path / "times")
    with (
        nginx(tmp_path / "nginx", front) as url,
        house(tmp_path, pool="{ready = 64, max = 72}", port=port, public_url=url) as opened,
    ):
        done = opened.evaluate(SCRIPT, rollouts=64, at=url, within_s=600)
    lines = [line.split() for line in (tmp_path / "times").read_text().splitlines()]
    assert (done.scores, done.errors) == ([1.0] * 64, [])
    assert len(lines) > 64 * 20
    assert max(float(took) for took, _, path, _ in lines if not path.endswith("/Start")) < 5
