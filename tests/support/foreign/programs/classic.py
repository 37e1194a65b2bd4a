"""The classic environments of verifiers, each for one rollout with a scripted model; prints what
the tools answered, the rewards and the errors as JSON.
"""

import asyncio
import json
import sys

import verifiers as vf
from datasets import Dataset

CALLS = {}


class Stateful(vf.StatefulToolEnv):
    """Its tool is told, beside what the model says, what only the environment knows."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_tool(self.look, args_to_skip=["hidden"])

    async def look(self, word: str, hidden: str) -> str:
        """Look a word up."""
        return f"{word}:{hidden}"

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "hidden": "kept"}


def reward(completion, **kwargs) -> float:
    return 1.0


def make(name: str, **more):
    dataset = Dataset.from_dict({"question": ["go"], "answer": ["x"]})
    shared = {"dataset": dataset, "eval_dataset": dataset, "rubric": vf.Rubric(funcs=[reward])}
    shared |= {"max_turns": 10, **more}
    match name:
        case "python":
            return vf.PythonEnv(pip_install_packages="", **shared)
        case "sandbox":
            return vf.SandboxEnv(timeout_per_command_seconds=2, max_retries=1, **shared)
        case "kernel":
            from sandboxd_client.integrations.verifiers import KernelPythonEnv

            return KernelPythonEnv("python", **shared)
        case "stateful":
            return Stateful(tools=[], **shared)
    raise ValueError(name)


def rollout(name: str, model: str) -> dict:
    env = make(name)
    client = vf.types.ClientConfig(api_base_url=model, api_key_var="FAKE_KEY")
    done = env.evaluate_sync(client=client, model="fake", num_examples=1, rollouts_per_example=1)
    outputs = done["outputs"]
    asyncio.run(env._teardown())
    return {
        "rewards": [each["reward"] for each in outputs],
        "errors": [each["error"]["error_chain_str"] for each in outputs if each.get("error")],
        "tools": [
            message["content"]
            for each in outputs
            for message in each["completion"]
            if message["role"] == "tool"
        ],
    }


# argv: classes, each with its model's address behind it.
names = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
json.dump({name: rollout(name, model) for name, model in names.items()}, sys.stdout)
