"""verifiers' own program over a daemon: an evaluation whose model is scripted."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.foreign.environments import environment, wheels
from tests.support.foreign.openai_server import Call, Turn, turns
from tests.support.foreign.running import environ

_TASKS = Path(__file__).parent / "tasks"

# Three calls of tools: what they leave is what the taskset rewards.
SCRIPT = turns(
    Turn(calls=[Call("bash", {"command": "pwd && echo forty-one > a.txt && cat rel.txt"})]),
    Turn(
        calls=[Call("edit", {"path": "/app/a.txt", "old_str": "forty-one", "new_str": "forty-two"})]
    ),
    Turn(calls=[Call("bash", {"command": "cat a.txt"})]),
    Turn("done"),
)


def template_for_harnesses(*, model_port: int, pool: str = "{ready = 2, max = 8}") -> str:
    """The configuration of sandboxes in which a harness finds `uv` and its packages, and the
    interception server of whoever runs the evaluation, on this machine.
    """
    folder = wheels("inside")
    return f"""
[compat.prime]
images = {{"*" = "python"}}

[templates.python]
image = "host"
resources = {{cpu = 1.0, memory_mb = 2048, pids = 256, disk_mb = 5120}}
mounts = [
  {{source = "{folder}", target = "/opt/harness"}},
  {{source = "{folder}/cache", target = "/opt/uv-cache", read_only = false}},
]
forwards = {{"{model_port}" = "http://127.0.0.1:{model_port}"}}
pool = {pool}

[templates.python.env]
PATH = "/opt/harness/bin:/usr/local/bin:/usr/bin:/bin"
UV_DEFAULT_INDEX = "file:///opt/harness/simple"
UV_PYTHON_DOWNLOADS = "never"
UV_CACHE_DIR = "/opt/uv-cache"
UV_LINK_MODE = "hardlink"
"""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What an evaluation left: its traces, one for each rollout, and what the program said."""

    traces: list[dict[str, Any]]
    said: str

    @property
    def scores(self) -> list[float]:
        """Of the rollouts that were scored; none of one that ended in an error."""
        rewards = [reward for trace in self.traces for reward in trace["rewards"].values()]
        return [reward["score"] for reward in rewards]

    @property
    def errors(self) -> list[str]:
        """The types of the errors that rollouts ended in."""
        return [error["type"] for trace in self.traces for error in trace["errors"]]


def evaluate(
    folder: Path,
    *,
    daemon: str,
    model: str,
    model_port: int,
    rollouts: int = 1,
    more: Sequence[str] = (),
    within_s: float = 120,
) -> Evaluated:
    """One rollout for each of so many tasks, all at once."""
    out = folder / "out"
    words = [str(environment("verifiers") / "vf-eval")]
    words += ["--env.taskset.id", "demo-set", "--model", "fake", "--client.base-url", model]
    words += ["--client.api-key-var", "FAKE_KEY", "--no-push", "--no-rich"]
    words += ["--env.interception.type", "server", "--env.interception.tunnel.type", "custom"]
    words += ["--env.interception.tunnel.url", f"http://127.0.0.1:{model_port}"]
    words += ["--env.interception.tunnel.port", str(model_port)]
    words += ["-n", str(rollouts), "-r", "1", "-c", str(rollouts), "-o", str(out), *more]
    done = subprocess.run(
        words,
        env={**environ(folder / "home", daemon=daemon), "PYTHONPATH": str(_TASKS)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=within_s, check=False, cwd=folder,
    )  # fmt: skip
    episodes = [
        json.loads(line)
        for file in out.rglob("traces.jsonl")
        for line in file.read_text().splitlines()
    ]
    traces = [trace for episode in episodes for trace in episode["traces"]]
    assert len(traces) == rollouts, done.stdout
    return Evaluated(traces, done.stdout)
