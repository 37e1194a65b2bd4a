"""The example's task with a model that says what it is told to; prints its status, scores and what
the tools answered as JSON. argv: the example; what is deleted before the last call, if anything.
"""

import json
import runpy
import sys
import urllib.request

from inspect_ai import eval as evaluate
from inspect_ai.model import ModelOutput, ModelUsage, get_model


def call(tool, **arguments):
    output = ModelOutput.for_tool_call("mockllm/model", tool, arguments)
    output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return output


def say():
    yield call("python", code="print(6 * 7)")
    for url in sys.argv[2:]:
        with urllib.request.urlopen(f"{url}/v1/sandboxes") as answer:
            (box,) = json.load(answer)["sandboxes"]
        gone = urllib.request.Request(f"{url}/v1/sandboxes/{box['id']}", method="DELETE")
        urllib.request.urlopen(gone).close()
    yield call("bash", command="echo 42 > answer.txt; cat answer.txt")
    done = ModelOutput.from_content("mockllm/model", "done")
    done.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    yield done


task = runpy.run_path(sys.argv[1])["answers"]()
(log,) = evaluate(
    task, model=get_model("mockllm/model", custom_outputs=say()), display="none", log_dir="logs"
)
told = {
    "status": log.status,
    "error": None if log.error is None else log.error.message,
    "scores": [score.value for sample in log.samples or [] for score in sample.scores.values()],
    "tools": [
        message.text
        for sample in log.samples or []
        for message in sample.messages
        if message.role == "tool"
    ],
}
json.dump(told, sys.stdout)
