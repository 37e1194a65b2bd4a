"""Cells: one after the other, each once, with everything they showed."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.contract.speaker import Speaker, eventually, problem
from tests.support.cells import Kernel, check_outputs, open_kernel

pytestmark = pytest.mark.timeout(120)

_WAITING = 64
_RICH = """
from IPython.display import HTML, SVG, JSON, Latex, Markdown, display
display({'image/png': 'iVBORw0KGgo=', 'text/plain': '<picture>'}, raw=True)
display(HTML('<table><tr><td>1</td></tr></table>'), SVG('<svg xmlns="http://www.w3.org/2000/svg"/>'))
display(JSON({'a': [1, None, {'b': float(2)}]}), Latex('$x$'), Markdown('# x'))
print('printed')
1 / 0
"""


def test_state_count_and_variables_go_from_cell_to_cell(kernel: Kernel) -> None:
    assert kernel.shown() == {**kernel.shown(), "state": "idle", "execution_count": 0}
    assert kernel.ok("x = 41") == ""
    cell = kernel.run("x + 1")
    assert (cell["text"], cell["execution_count"]) == ("42", 2)
    assert kernel.shown()["execution_count"] == 2
    kernel.ok("x += 1", store_history=False)
    assert kernel.run("x")["execution_count"] == 3


def test_outputs_are_what_a_notebook_holds(kernel: Kernel) -> None:
    cell = kernel.run(_RICH)
    check_outputs(cell["outputs"])
    kinds = [sorted(output.get("data", {})) for output in cell["outputs"]]
    assert kinds[:3] == [["image/png", "text/plain"], ["text/html", "text/plain"],
                         ["image/svg+xml", "text/plain"]]  # fmt: skip
    assert cell["outputs"][3]["data"]["application/json"] == {"a": [1, None, {"b": 2.0}]}
    assert [output["output_type"] for output in cell["outputs"][-2:]] == ["stream", "error"]
    assert cell["text"].startswith("<picture>\n<IPython.core.display.HTML object>\n")
    assert "printed\n" in cell["text"]
    assert cell["text"].endswith("ZeroDivisionError: division by zero")
    assert "\x1b" not in cell["text"]


def test_text_that_is_none_costs_no_cell(kernel: Kernel) -> None:
    cell = kernel.run("print('caf\\udce9 \\x00 \\u2028 \\U0001f600'); raise ValueError('\\udce9')")
    assert cell["stdout"] == "caf\N{REPLACEMENT CHARACTER} \x00 \u2028 \U0001f600\n"
    assert cell["error"]["evalue"] == "\N{REPLACEMENT CHARACTER}"
    nan = kernel.run("display({'application/json': {'x': 1}}, raw=True); float('nan')")
    assert nan["text"].endswith("nan")


def test_events_number_what_happened_and_can_be_read_again(kernel: Kernel) -> None:
    code = "import sys; print('a'); print('b', file=sys.stderr); display(1); 2"
    with kernel.stream(code, cell_id="events") as lines:
        seen = list(lines)
    kinds = [event["type"] for event in seen]
    assert (kinds[0], kinds[-1]) == ("started", "ended")
    assert sorted(kinds[1:-1]) == ["output", "output", "stderr", "stdout"]
    assert [event["seq"] for event in seen] == list(range(1, len(seen) + 1))
    assert seen[-1]["cell"] == kernel.cell("events")
    for after in range(len(seen)):
        assert kernel.events("events", after=after) == seen[after:]


def test_events_come_while_the_cell_runs(kernel: Kernel) -> None:
    code = "print('asked', flush=True); got = input('who? '); print('hello', got)"
    with kernel.stream(code, allow_stdin=True) as lines:
        seen = [next(lines) for _ in range(3)]
        assert [event["type"] for event in seen] == ["started", "stdout", "input_request"]
        assert (seen[2]["prompt"], seen[2]["password"]) == ("who? ", False)
        assert kernel.call("input", text="world").status_code == 200
        cell = list(lines)[-1]["cell"]
    assert (cell["outcome"], cell["stdout"]) == ("ok", "asked\nhello world\n")


def test_a_password_is_asked_for_as_one(kernel: Kernel) -> None:
    with kernel.stream("import getpass; getpass.getpass('pw: ')", allow_stdin=True) as lines:
        asked = next(event for event in lines if event["type"] == "input_request")
        assert (asked["prompt"], asked["password"]) == ("pw: ", True)
        kernel.call("input", text="secret")
        assert list(lines)[-1]["cell"]["text"] == "'secret'"


def test_an_answer_to_nothing_is_refused(kernel: Kernel) -> None:
    problem(kernel.call("input", text="x"), 409, "conflict")


def test_what_waits_behind_an_error_is_aborted_and_never_an_empty_success(kernel: Kernel) -> None:
    first = kernel.start("import time; time.sleep(0.5); 1 / 0")
    waiting = [kernel.start(f"ran = {number}") for number in range(3)]
    assert kernel.ended(first)["outcome"] == "error"
    for cell_id in waiting:
        cell = kernel.ended(cell_id)
        assert (cell["outcome"], cell["execution_count"], cell["text"]) == ("aborted", None, "")
        assert (cell["fault"], cell["mask"]) == (None, False)
        assert kernel.events(cell_id)[-1]["type"] == "ended"
    assert kernel.ok("'ran' in globals()") == "False"


def test_what_waits_behind_an_error_runs_if_that_was_asked(kernel: Kernel) -> None:
    first = kernel.start("import time; time.sleep(0.5); 1 / 0", stop_on_error=False)
    second = kernel.start("'ran'")
    assert kernel.ended(first)["outcome"] == "error"
    assert kernel.ended(second)["text"] == "'ran'"


def test_the_line_has_a_bound_and_what_is_refused_never_ran(kernel: Kernel) -> None:
    kernel.ok("ran = []")
    first = kernel.start("import time; time.sleep(2)")
    kernel.running(first)
    waiting = [kernel.start(f"ran.append({number})") for number in range(_WAITING)]
    body = problem(kernel.call("execute", code="ran.append('no')"), 409, "kernel_busy")
    assert not body["mask"] or body["fault"] == "client"
    # Whoever asks for one that waits is let in: that is no new cell.
    assert kernel.start("ran.append(0)", cell_id=waiting[0]) == waiting[0]
    for cell_id in waiting:
        assert kernel.ended(cell_id)["outcome"] == "ok"
    assert kernel.ok("print(ran)") == f"{list(range(_WAITING))}\n"


def test_waiting_does_not_count_against_a_cells_time(kernel: Kernel) -> None:
    kernel.start("import time; time.sleep(1.5)")
    assert kernel.run("1", timeout_s=1)["outcome"] == "ok"


def test_a_cell_id_runs_once_however_often_and_from_wherever_it_is_sent(kernel: Kernel) -> None:
    kernel.ok("count = 0")

    def send(_: int) -> dict[str, Any]:
        return kernel.run("import time; time.sleep(0.3); count += 1; count", cell_id="once")

    with ThreadPoolExecutor(8) as callers:
        cells = list(callers.map(send, range(8)))
    assert all(cell == cells[0] for cell in cells)
    assert send(0) == cells[0]
    assert kernel.ok("count") == "1"


def test_a_cell_id_that_belongs_to_other_code_is_refused(kernel: Kernel) -> None:
    kernel.ok("1", cell_id="taken")
    problem(kernel.call("execute", code="2", cell_id="taken"), 409, "conflict")
    assert kernel.cell("taken")["text"] == "1"


def test_a_cell_id_that_was_forgotten_is_refused_and_not_run_again(liar: Kernel) -> None:
    liar.run("first", cell_id="old")
    for number in range(300):
        liar.run(f"{number}")
    body = problem(liar.call("execute", code="first", cell_id="old"), 409, "conflict")
    assert "forgotten" in body["detail"]
    assert liar.run("next")["execution_count"] == 302


def test_a_cell_whose_caller_went_away_runs_on(kernel: Kernel) -> None:
    with kernel.stream("import time; time.sleep(0.5); 'done'", cell_id="left") as lines:
        assert next(lines)["type"] == "started"
    assert kernel.ended("left")["text"] == "'done'"


def test_cells_and_kernels_that_are_not_there_are_not_found(kernel: Kernel) -> None:
    sandbox = kernel.sandbox
    problem(sandbox.get(kernel.path + "/cells/nope"), 404, "not_found")
    problem(sandbox.get(kernel.path + "/cells/nope/events"), 404, "not_found")
    problem(sandbox.get("/kernels/nope"), 404, "not_found")
    problem(sandbox.post("/kernels/nope/execute", {"code": "1"}), 404, "not_found")
    problem(sandbox.http.delete(sandbox.path + "/kernels/nope"), 404, "not_found")


def test_names_are_completed_and_explained(kernel: Kernel) -> None:
    kernel.ok("value_of_mine = 1")
    found = kernel.call("complete", code="value_of_m").json()
    assert found["matches"] == ["value_of_mine"]
    assert (found["cursor_start"], found["cursor_end"]) == (0, 10)
    told = kernel.call("inspect", code="len(", cursor=3).json()
    assert told["found"]
    assert "Return the number of items" in told["data"]["text/plain"]
    assert kernel.ok("1") == "1"
    assert kernel.shown()["execution_count"] == 2


def test_a_restart_forgets_variables_ends_what_runs_and_aborts_what_waits(kernel: Kernel) -> None:
    kernel.ok("kept = 1")
    running = kernel.start("import time; time.sleep(100)")
    kernel.running(running)
    waiting = kernel.start("1")
    shown = kernel.call("restart").json()
    assert (shown["state"], shown["execution_count"]) == ("idle", 0)
    cell = kernel.ended(running)
    assert (cell["outcome"], cell["kernel_restarted"]) == ("interrupted", True)
    assert (cell["fault"], cell["mask"]) == ("client", False)
    assert kernel.ended(waiting)["outcome"] == "aborted"
    assert kernel.ok("'kept' in globals()") == "False"
    assert kernel.cell(running)["outcome"] == "interrupted"


def test_an_interrupt_of_an_idle_kernel_harms_nothing(kernel: Kernel) -> None:
    kernel.ok("kept = 1")
    for _ in range(3):
        assert kernel.call("interrupt").status_code == 200
    assert kernel.ok("kept") == "1"


def test_what_was_shut_down_is_gone_with_all_that_it_started(roomy: Speaker) -> None:
    kernel = open_kernel(roomy)
    kernel.ok("import subprocess; subprocess.Popen(['sleep', '2024'])")
    running = kernel.start("import time; time.sleep(100)")
    kernel.running(running)
    assert roomy.http.delete(roomy.path + kernel.path).status_code == 204
    problem(roomy.get(kernel.path), 404, "not_found")
    ids = [each["kernel_id"] for each in roomy.get("/kernels").json()["kernels"]]
    assert kernel.kernel_id not in ids
    eventually(lambda: not roomy.processes("sleep 2024"), within_s=5, what="the child is gone")


def test_several_kernels_are_several(roomy: Speaker, kernel: Kernel) -> None:
    other = open_kernel(roomy, env={"MINE": "yes"}, cwd="/tmp")
    kernel.ok("x = 1")
    other.ok("x = 2")
    assert (kernel.ok("x"), other.ok("x")) == ("1", "2")
    assert other.ok("import os; os.environ['MINE'], os.getcwd()") == "('yes', '/tmp')"
    listed = {each["kernel_id"] for each in roomy.get("/kernels").json()["kernels"]}
    assert listed >= {kernel.kernel_id, other.kernel_id}
    sleeping = kernel.start("import time; time.sleep(1)")
    assert other.ok("x") == "2"
    assert kernel.cell(sleeping)["state"] == "running"
    roomy.http.delete(roomy.path + other.path)
    assert kernel.ok("x") == "1"


def test_a_kernel_id_of_the_callers_own_attaches(roomy: Speaker, kernel: Kernel) -> None:
    kernel.ok("x = 1")
    again = open_kernel(roomy, kernel_id=kernel.kernel_id)
    assert again.ok("x") == "1"


def test_a_kernel_id_of_another_spec_is_refused(roomy: Speaker, kernel: Kernel) -> None:
    body = {"kernel_id": kernel.kernel_id, "spec": "another"}
    problem(roomy.post("/kernels", body), 409, "conflict")
    assert kernel.ok("6 * 7") == "42"


def test_kernels_are_no_commands(roomy: Speaker, kernel: Kernel) -> None:
    listed = json.dumps(roomy.get("/execs").json())
    assert "ipykernel" not in listed
    assert kernel.kernel_id not in listed
