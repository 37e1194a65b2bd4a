"""A coding agent works inside a sandbox, reaches its model, and is graded when it is done.

The agent is mini-swe-agent. It runs in a sandbox without any network. A forward leads port 8000
inside to the model's server out here, and adds the model's key on the way: the agent never has it.
Then the grading phase begins, in which nothing of the agent runs any more, and what it left is
judged. The model here is a script, so that every run is the same; for a real one, give `forwards`
its address and key, and the agent its name.

Have the agent on the machine once, and show it to the sandboxes of a template:

    python3 -m pip install --target /srv/mini-swe-agent mini-swe-agent==2.4.6

    [templates.agent]                       # in sandboxd.toml
    image = "host"
    mounts = [{source = "/srv/mini-swe-agent", target = "/opt/agent"}]
    resources = {memory_mb = 1024}

Then `sandboxd serve`, and this program (SANDBOXD_API_URL says where the daemon is). The packages
are for one version of Python: take the sandbox's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anyio
from anyio import to_thread

from sandboxd_client import AsyncSandbox, AsyncSandboxd

KEY = "sk-known-to-the-trainer-alone"
TASK = "median() in stats.py is wrong for an even count of numbers. Mend it."
BROKEN = "def median(numbers):\n    return sorted(numbers)[len(numbers) // 2]\n"
MENDED = """\
def median(numbers):
    ordered, half = sorted(numbers), len(numbers) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
"""
# What the model has the agent run, one after the other. `env` shows all that the agent knows.
STEPS = (
    "cat stats.py && env",
    f"cat > stats.py <<'END'\n{MENDED}END",
    "python3 -c 'import stats; print(stats.median([1, 2, 3, 4]))'",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
)
AGENT = ["python3", "-m", "minisweagent", "--yolo", "--exit-immediately", "--task", TASK]
AGENT_ENV = {
    "PYTHONPATH": "/opt/agent",
    "OPENAI_BASE_URL": "http://127.0.0.1:8000/v1",
    "OPENAI_API_KEY": "the-forward-has-it",  # the library wants one; it is replaced outside
    "MSWEA_MODEL_NAME": "openai/scripted",
    "MSWEA_CONFIGURED": "true",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_GLOBAL_CONFIG_DIR": "/tmp/mini-swe-agent",  # noqa: S108 - inside the sandbox
    "LITELLM_LOCAL_MODEL_COST_MAP": "true",
}
# What the agent's program is asked when it is done, and the answers, which stay out here.
QUESTIONS, ANSWERS = [[7, 1, 3], [4, 1, 3, 2], [5, 9]], [3, 2.5, 7.0]
GRADER = "import json, stats; print(json.dumps([stats.median(q) for q in json.loads(input())]))"


class Model(ThreadingHTTPServer):
    """Speaks the OpenAI API and answers with the next step. heard: what it was asked, as it came.

    Whoever comes without the key is sent away.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Conversation)
        self.heard: list[str] = []

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"


class Conversation(BaseHTTPRequestHandler):
    """One connection to the model."""

    server: Model

    def do_POST(self) -> None:
        """`POST /v1/chat/completions`."""
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self.headers["Authorization"] != f"Bearer {KEY}":
            self._answer(401, {"error": {"message": "who are you?"}})
            return
        self.server.heard.append(asked)
        self._answer(200, completion(len(self.server.heard)))

    def _answer(self, status: int, told: object) -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing: standard error is for what went wrong."""


def completion(number: int) -> dict[str, object]:
    """The model's answer to call `number`, counted from 1: run this."""
    step = STEPS[min(number, len(STEPS)) - 1]
    function = {"name": "bash", "arguments": json.dumps({"command": step})}
    call = {"id": f"call-{number}", "type": "function", "function": function}
    message = {"role": "assistant", "content": "Next:", "tool_calls": [call]}
    return {
        "id": f"answer-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


@asynccontextmanager
async def serving() -> AsyncIterator[Model]:
    """The model's server, in a thread."""
    with Model() as model:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(to_thread.run_sync, model.serve_forever), name="model")
            try:
                yield model
            finally:
                model.shutdown()


async def grade(sandbox: AsyncSandbox) -> float | None:
    """The reward; None where it cannot be told, and the agent is not to blame."""
    await sandbox.begin_grading(timeout_s=60)
    question = json.dumps(QUESTIONS)
    result = await sandbox.exec(["python3", "-c", GRADER], stdin=question, timeout_s=10)
    # The output is compared, not the status: that is the agent's code's to choose.
    return None if result.mask else float(result.stdout == json.dumps(ANSWERS) + "\n")


async def main() -> None:
    """Run the agent, say what it did, and grade it."""
    async with (
        serving() as model,
        AsyncSandboxd() as client,
        client.lease(
            "agent",
            files={"stats.py": BROKEN},
            network="none",
            forwards={8000: {"url": model.url, "headers": {"Authorization": f"Bearer {KEY}"}}},
            timeout_s=300,
            grading_s=60,
        ) as sandbox,
    ):
        result = await sandbox.exec(AGENT, env=AGENT_ENV, timeout_s=200)
        print(f"the agent ended with {result.exit_code}, the model was asked {len(model.heard)}x")
        if not result.ok:
            print(result.stdout[-4000:], result.stderr[-4000:])
        told = "".join([result.stdout, result.stderr, *model.heard])
        own = set(re.findall(r"OPENAI_API_KEY=([\w-]+)", told))
        print(f"its own key: {' '.join(own)}; it saw the trainer's: {KEY in told}")
        print(await sandbox.files.read_text("stats.py"), end="")
        print("reward", await grade(sandbox))


anyio.run(main)
