"""verifiers 0.4 with its own program and its bash harness, unmodified, and what becomes of its
rollouts when things break under them.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandboxd.backends.local.boxes import parse_documents
from tests.support.foreign.evals import SCRIPT, Evaluated, evaluate, template_for_harnesses
from tests.support.foreign.openai_server import Script, Turn, scripted_model
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

    def evaluate(self, script: Script, *, rollouts: int = 1, within_s: float = 150) -> Evaluated:
        """Rollouts whose model says that."""
        with scripted_model(script) as model:
            return evaluate(
                self.folder, daemon=self.daemon.url, model=model.url, model_port=self.port,
                rollouts=rollouts, within_s=within_s,
            )  # fmt: skip


@contextmanager
def house(folder: Path, *, pool: str = "{ready = 1, max = 8}") -> Iterator[House]:
    port = free_port()
    config = template_for_harnesses(model_port=port, pool=pool)
    with service(folder, config=config, port=free_port()) as running:
        yield House(running, port, folder)


def test_a_rollout_of_the_bash_harness_is_rewarded(tmp_path: Path) -> None:
    with house(tmp_path) as opened:
        done = opened.evaluate(SCRIPT)
        left = httpx.get(f"{opened.daemon.url}/v1/sandboxes").json()["sandboxes"]
    assert (done.scores, done.errors) == ([1.0], []), done.said
    assert left == []
    # Nothing that was asked of the daemon failed, and nothing took long.
    assert "internal" not in opened.daemon.log.read_text()


def breaks(how: Callable[[], None]) -> Script:
    """The same script, but for what happens as its third turn is asked for."""
    happened: list[bool] = []

    def say(messages: list[dict[str, Any]]) -> Turn:
        if sum(message["role"] == "assistant" for message in messages) == 2 and not happened:
            happened.append(True)
            how()
        return SCRIPT(messages)

    return say


def leased(daemon: Service) -> str:
    """The id of the one sandbox that is leased."""
    (found,) = httpx.get(f"{daemon.url}/v1/sandboxes").json()["sandboxes"]
    return str(found["id"])


def first_process(daemon: Service, sandbox: str) -> int:
    """This machine's number of the first process in a sandbox's box."""
    diary = httpx.get(f"{daemon.url}/v1/sandboxes/{sandbox}/logs").text
    (box_id,) = re.findall(r'"box_id":"(box-\w+)"', diary)
    record = parse_documents((daemon.state / "boxes" / box_id / "box.json").read_text())
    return int(record["process"]["pid"])


def test_a_sandbox_that_is_killed_under_a_rollout_ends_it_in_an_error_of_infrastructure(
    tmp_path: Path,
) -> None:
    with house(tmp_path) as opened:

        def kill() -> None:
            os.kill(first_process(opened.daemon, leased(opened.daemon)), signal.SIGKILL)

        done = opened.evaluate(breaks(kill))
    assert (done.scores, done.errors) == ([], ["SandboxError"]), done.said


def test_a_sandbox_that_is_taken_away_ends_its_rollout_the_same(tmp_path: Path) -> None:
    with house(tmp_path) as opened:
        url = opened.daemon.url

        def release() -> None:
            httpx.delete(f"{url}/v1/sandboxes/{leased(opened.daemon)}")

        done = opened.evaluate(breaks(release))
    assert (done.scores, done.errors) == ([], ["SandboxError"]), done.said


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

        done = opened.evaluate(breaks(restart))
    assert (done.scores, done.errors) in (([1.0], []), ([], ["SandboxError"])), done.said
