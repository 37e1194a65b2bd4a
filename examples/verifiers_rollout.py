"""One rollout of verifiers 0.4 in a leased sandbox, natively: the box is given to the agent.

Run a daemon, then `python examples/verifiers_rollout.py` with `verifiers` and `sandboxd` installed.
OPENAI_BASE_URL and OPENAI_API_KEY say where the model is; MODEL which one it is.
"""

import os

import anyio
import verifiers.v1 as vf
from verifiers.v1.clients import EvalClientConfig
from verifiers.v1.runtimes import SubprocessConfig

from sandboxd_client.integrations.verifiers import runtime


class Answer(vf.Task[vf.TaskData]):
    """A file is to be written; the sandbox is asked whether it was."""

    @vf.reward
    async def written(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        """1 for the right answer in the right place."""
        return float(await runtime.read("answer.txt") == b"42\n")


async def main() -> None:
    """Lease, run the agent in the box, tell how it went; leaving the block gives the box back."""
    model = EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    # The runtime here is never used: the agent runs in the box that it is given.
    config = vf.AgentConfig(
        model=os.environ.get("MODEL", "fake"), client=model, runtime=SubprocessConfig()
    )
    task = Answer(vf.TaskData(idx=0, prompt="Write 42 and a line break to answer.txt."))
    async with runtime("python", timeout_s=600) as box:
        trace = await vf.Agent(config).run(task, runtime=box)
    for error in trace.errors:
        print("not the agent's doing: leave this rollout out:", error.type, error.message)
    for name, reward in trace.rewards.items():
        print(name, reward.score)


anyio.run(main)
