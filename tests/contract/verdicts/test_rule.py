"""The masking rule of the page, run as it stands there, against what rollouts meet."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from sandboxd_client import ExecResult, Sandbox, Sandboxd
from tests.contract.cases.houses import House
from tests.support.daemon import ROOT

pytestmark = pytest.mark.timeout(120)

Reward = Callable[[Sandboxd, Callable[[Sandbox], ExecResult]], float | None]


@pytest.fixture(scope="module")
def reward() -> Reward:
    """The function that the page shows."""
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    found: dict[str, Any] = {}
    exec(compile(shown, "docs/faults.md", "exec"), found)  # noqa: S102 - our own page
    rule: Reward = found["reward"]
    return rule


def dies(house: House) -> Callable[[Sandbox], ExecResult]:
    """A rollout whose sandbox is killed under it."""

    def rollout(sandbox: Sandbox) -> ExecResult:
        house.kill(house.box_of(sandbox.id))
        return sandbox.exec("true")

    return rollout


def expires(sandbox: Sandbox) -> ExecResult:
    """A rollout whose lease is too short for its work."""
    sandbox.renew(1)
    return sandbox.exec("sleep 300")


def test_what_the_agent_did_is_scored(client: Sandboxd, reward: Reward) -> None:
    assert reward(client, lambda sandbox: sandbox.exec("true")) == 1.0
    for cmd in ("exit 1", "kill -9 $$"):
        assert reward(client, lambda sandbox, cmd=cmd: sandbox.exec(cmd)) == 0.0  # type: ignore[misc]
    assert reward(client, lambda sandbox: sandbox.exec("sleep 300", timeout_s=0.5)) == 0.0
    assert reward(client, lambda sandbox: sandbox.exec(["no-such-program"])) == 0.0


def test_what_others_did_is_left_out(client: Sandboxd, shared_house: House, reward: Reward) -> None:
    assert reward(client, dies(shared_house)) is None
    assert reward(client, expires) is None
    assert reward(client, lambda sandbox: sandbox.exec("true", cwd="/nope")) is None


def test_a_daemon_that_is_not_there_is_no_zero(reward: Reward) -> None:
    with Sandboxd(url="http://127.0.0.1:9", patience_s=0.2) as nobody:
        assert reward(nobody, lambda sandbox: sandbox.exec("true")) is None
