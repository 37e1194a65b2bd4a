"""An evaluation of Inspect whose samples each have a leased sandbox.

Run a daemon, then `inspect eval examples/inspect_task.py --model …` with `inspect-ai` and
`sandboxd` installed; the provider is found by itself.
"""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Target, accuracy, scorer
from inspect_ai.solver import TaskState, generate, use_tools
from inspect_ai.tool import bash, python
from inspect_ai.util import sandbox


@scorer(metrics=[accuracy()])
def written():
    """Whether the answer is in its place, as the sandbox says."""

    async def score(state: TaskState, target: Target) -> Score:
        said = await sandbox().read_file("answer.txt")
        return Score(value="C" if said.strip() == target.text else "I")

    return score


@task
def answers() -> Task:
    """One sample: a number is to be written to a file."""
    return Task(
        dataset=[Sample(input="Write 6 times 7 to answer.txt.", target="42")],
        solver=[use_tools([bash(timeout=30), python(timeout=30)]), generate()],
        scorer=written(),
        sandbox="sandboxd",
    )
