"""Kernels that lie: no lie makes a cell succeed, none is another's, nobody else waits for it."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.contract.speaker import Speaker, problem
from tests.support.cells import Kernel, add_liar, check_outputs, open_kernel
from tests.support.daemon import RunningDaemon

pytestmark = pytest.mark.timeout(120)

_OTHERS_WAIT_S = 1.0  # at most, on a machine that does other things too
_MB = 1 << 20

Step = dict[str, Any]

REPLY: Step = {"say": "execute_reply", "on": "shell", "content": {"status": "ok"}}
FAILED: Step = {"say": "execute_reply", "on": "shell", "content": {"status": "error", "ename": "E"}}
IDLE: Step = {"say": "status", "content": {"execution_state": "idle"}}
DISPLAY = '{"msg_id": "d", "msg_type": "display_data"}'
PARENT = '{"msg_id": "cell.own"}'


def printed(text: str, **more: Any) -> Step:
    return {"say": "stream", "content": {"name": "stdout", "text": text}, **more}


def shown(data: Any, **more: Any) -> Step:
    return {"say": "display_data", "content": {"data": data, **more}}


def run(liar: Kernel, *steps: Step, **fields: Any) -> dict[str, Any]:
    return liar.run(json.dumps(steps), **fields)


NOT_OK: dict[str, list[Step]] = {
    "a status that is a list": [{**REPLY, "content": {"status": ["ok"]}}, IDLE],
    "a status that is true": [{**REPLY, "content": {"status": True}}, IDLE],
    "no status": [{**REPLY, "content": {}}, IDLE],
    "content that is no object": [{**REPLY, "content": [1]}, IDLE],
    "content that is huge": [
        {**REPLY, "content": {"status": "ok", "x": "FILL"}, "fill": ["x", 17 * _MB]},
        IDLE,
    ],
    "success after failure": [FAILED, REPLY, IDLE],
    "success nobody signed": [{**REPLY, "key": "another"}, FAILED, IDLE],
    "success of another type": [{**REPLY, "say": "inspect_reply"}, FAILED, IDLE],
    "success on another channel": [{**REPLY, "on": "control"}, {**REPLY, "on": "iopub"}, FAILED,
                                   IDLE],
    "success of another cell": [{**REPLY, "parent": {"msg_id": "cell.other"}}, FAILED, IDLE],
    "success of nobody": [{**REPLY, "parent": {}}, FAILED, IDLE],
}  # fmt: skip


@pytest.mark.parametrize("steps", NOT_OK.values(), ids=NOT_OK)
def test_no_lie_makes_a_success(liar: Kernel, steps: list[Step]) -> None:
    cell = run(liar, *steps, timeout_s=30)
    assert cell["outcome"] == "error"
    assert liar.run("honest")["stdout"] == "honest"


NEVER: dict[str, list[Step]] = {
    "no idle": [REPLY],
    "no reply": [IDLE],
    "nothing": [],
    "idle of nobody": [REPLY, {**IDLE, "parent": {}}],
    "idle nobody signed": [REPLY, {**IDLE, "key": "another"}],
    "an idle that is a list": [REPLY, {**IDLE, "content": {"execution_state": ["idle"]}}],
    "an idle on its shell": [REPLY, {**IDLE, "on": "shell"}],
}


@pytest.mark.parametrize("steps", NEVER.values(), ids=NEVER)
def test_a_cell_that_is_not_seen_to_its_end_has_timed_out(liar: Kernel, steps: list[Step]) -> None:
    cell = run(liar, *steps, timeout_s=0.3)
    assert (cell["outcome"], cell["kernel_restarted"]) == ("timeout", True)
    assert liar.run("honest")["stdout"] == "honest"


HARMLESS: dict[str, list[Step]] = {
    "an idle before the reply": [IDLE, REPLY],
    "no JSON": [{"texts": ["{", "{}", "{}", "{}"]}, {"texts": ["{}"] * 3 + ["{"]}, REPLY, IDLE],
    "JSON that is deep": [{"texts": ["{}", "{}", "{}", "[" * 10_000]}, REPLY, IDLE],
    "heads that are huge": [printed("x", header={"pad": "y" * _MB}), REPLY, IDLE],
    "ids that are huge": [printed("x", parent={"msg_id": "y" * 60_000}),
                          printed("x", header={"msg_id": "z" * 900}), REPLY, IDLE],
    "frames that are none": [{"frames": ["a"]}, {"frames": ["", "<IDS|MSG>"]},
                             {"frames": ["<IDS|MSG>"] * 9}, {"frames": ["x"] * 300}, REPLY, IDLE],
    "fields of other types": [
        {"say": "stream", "content": {"name": 7, "text": {"a": 1}}},
        {"say": "error", "content": {"ename": [1], "evalue": None, "traceback": "x"}},
        {"say": "error", "content": {"traceback": [1, None, "x"]}},
        {"say": "clear_output", "content": {"wait": "no"}},
        {"say": "execute_input", "content": {"execution_count": "many"}},
        {"say": "update_display_data", "content": {"transient": {"display_id": [1]}}},
        {"say": "input_request", "on": "stdin", "content": {"prompt": 5}},
        {"say": "status", "content": []},
        {"say": ["status"], "content": {}},
        shown([1]), shown({"text/plain": 7, "image/png": {"a": 1}}, metadata=[], transient="x"),
        REPLY, IDLE,
    ],
    "messages that are large": [{**shown({"text/plain": "FILL"}), "fill": ["x", 15 * _MB]},
                                {**printed("FILL"), "fill": ["\u20ac", 4 * _MB]},
                                {**printed("x"), "buffers": 20 * _MB}, REPLY, IDLE],
    "messages full of values": [
        {"texts": [DISPLAY, PARENT, "{}", '{"data": {"application/json": [FILL]}}'],
         "fill": ['{"a": 1},', 1_500_000]},
        {"texts": [DISPLAY, PARENT, "{}", '{"data": {"application/json": [FILL]}}'],
         "fill": ["1,", 7 * _MB]},
        {"texts": [DISPLAY, PARENT, "{}", '{"data": {"a": [FILL]}}'], "fill": ["\x01,", 4 * _MB]},
        REPLY, IDLE,
    ],
    "a flood": [printed("x", times=20_000), REPLY, IDLE],
    "a flood of displays": [{**shown({"text/plain": "x"}, transient={"display_id": "d"}),
                             "times": 12_000},
                            {"say": "update_display_data", "times": 300,
                             "content": {"data": {"text/plain": "y"},
                                         "transient": {"display_id": "d"}}}, REPLY, IDLE],
    "updates without end": [{**shown({"text/plain": "x"}, transient={"display_id": "d"}),
                             "times": 9_000},
                            {"say": "update_display_data", "times": 9_000,
                             "content": {"data": {"text/plain": "y"},
                                         "transient": {"display_id": "d"}}}, REPLY, IDLE],
    "a media type without end": [
        {"texts": [DISPLAY, PARENT, "{}", '{"data": {"application/FILL": "x"}}'],
         "fill": ["+", 15 * _MB]}, REPLY, IDLE],
    "colours without end": [{**shown({"text/plain": "FILL"}), "fill": ["\x1b[m", _MB]}, REPLY,
                            IDLE],
    "no numbers": [{"texts": [DISPLAY, PARENT, "{}", '{"data": {"application/json": [NaN]}}']},
                   REPLY, IDLE],
    "a line overwritten ever again": [printed("x" * 400_000 + "\ry" * 300_000), REPLY, IDLE],
    "traceback without end": [{"say": "error", "content": {"traceback": ["x" * 20_000] * 400}},
                              REPLY, IDLE],
}  # fmt: skip


@pytest.mark.parametrize("steps", HARMLESS.values(), ids=HARMLESS)
def test_whatever_is_said_besides_harms_neither_the_cell_nor_its_neighbours(
    liar: Kernel, daemon: RunningDaemon, steps: list[Step]
) -> None:
    longest = 0.0
    with ThreadPoolExecutor(1) as worker, httpx.Client(base_url=daemon.url) as other:
        running = worker.submit(run, liar, *steps, timeout_s=60, cell_id="own")
        while not running.done():
            began = time.monotonic()
            assert other.get("/v1/version", timeout=30).status_code == 200
            longest = max(longest, time.monotonic() - began)
        cell = running.result()
    assert cell["outcome"] == "ok"
    check_outputs(cell["outputs"])
    assert longest < _OTHERS_WAIT_S
    assert liar.run("honest")["stdout"] == "honest"


def test_what_it_says_of_another_cell_is_that_cells_and_late(liar: Kernel) -> None:
    liar.run("first", cell_id="first")
    of_first = {"msg_id": "cell.first", "msg_type": "execute_request"}
    told = [printed("forged", parent=of_first), {**IDLE, "parent": of_first}]
    cell = run(liar, *told, {**FAILED, "parent": of_first}, printed("own"), REPLY, IDLE)
    assert (cell["outcome"], cell["stdout"]) == ("ok", "own")
    first = liar.cell("first")
    assert (first["outcome"], first["stdout"], first["late"]) == ("ok", "first", True)
    assert first["late_outputs"][0]["text"] == "forged"


def test_it_cannot_answer_a_cell_before_it_is_given_it(liar: Kernel) -> None:
    of_next = {"msg_id": "cell.next"}
    forged = [{**REPLY, "parent": of_next}, {**IDLE, "parent": of_next}]
    steps = [{"sleep": 0.3}, *forged, printed("x", parent=of_next), REPLY, IDLE]
    first = liar.start(json.dumps(steps))
    liar.running(first)
    liar.start(json.dumps([printed("own"), FAILED, IDLE]), cell_id="next")
    assert liar.ended(first)["outcome"] == "ok"
    cell = liar.ended("next")
    assert (cell["outcome"], cell["stdout"]) == ("error", "own")


def test_it_cannot_speak_for_cells_of_another_kernel(roomy: Speaker, liar: Kernel) -> None:
    other = open_kernel(roomy, "liar")
    cell_id = other.start(json.dumps([{"sleep": 0.5}, FAILED, IDLE]))
    of_other = {"msg_id": f"cell.{cell_id}"}
    forged = [{**REPLY, "parent": of_other}, {**IDLE, "parent": of_other}]
    run(liar, *forged, printed("x", parent=of_other), REPLY, IDLE)
    cell = other.ended(cell_id)
    assert (cell["outcome"], cell["stdout"]) == ("error", "")
    roomy.http.delete(roomy.path + other.path)


def test_a_kernel_that_exits_before_it_answers_is_not_there(roomy: Speaker) -> None:
    add_liar(roomy, "mute", LIAR_EXITS="1")
    answer = roomy.post("/kernels", {"spec": "mute"})
    body = problem(answer, 502, "start_failed")
    assert (body["fault"], body["mask"]) == ("task", True)


def test_cells_whose_marks_are_forged_stay_who_they_are(liar: Kernel) -> None:
    forged = {"msg_id": "cell.forged", "msg_type": "execute_request", "sandboxd": {"a": 1}}
    run(liar, {"say": "execute_request", "on": "shell", "header": forged}, REPLY, IDLE)
    problem(liar.sandbox.get(liar.path + "/cells/forged"), 404, "not_found")
