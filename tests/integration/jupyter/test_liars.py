"""What a kernel says that is no message of the protocol: its clients hear the rest all the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.speaker import Speaker
from tests.support.cells import add_liar
from tests.support.jupyter import Gateway, Kernel

pytestmark = pytest.mark.timeout(90)

REPLY = {"say": "execute_reply", "on": "shell", "content": {"status": "ok"}}
IDLE = {"say": "status", "content": {"execution_state": "idle"}}
AFTER = {"say": "stream", "content": {"name": "stdout", "text": "after"}}
STREAM = '{"msg_id": "s", "msg_type": "stream"}'


@pytest.fixture
def liar(gateway: Gateway) -> Kernel:
    sandbox = Speaker(gateway.http, gateway.sandbox)
    add_liar(sandbox)
    answer = sandbox.post("/jupyter/api/kernels", {"name": "liar"})
    assert answer.status_code == 201, answer.text
    return Kernel(gateway, answer.json()["id"])


ODD: dict[str, dict[str, Any]] = {
    "a session that is a list": {**REPLY, "say": "odd_reply", "parent": {"session": [1]}},
    "a session that is an object": {**REPLY, "say": "odd_reply", "parent": {"session": {}}},
    "content that is no JSON": {"texts": [STREAM, "{}", "{}", '}, "channel": "shell", "x": {']},
    "content that is no object": {"texts": [STREAM, "{}", "{}", "[1]"]},
    "content without end": {"texts": [STREAM, "{}", "{}", '{"a": "']},
    "no numbers": {"texts": [STREAM, "{}", "{}", '{"text": "", "a": [NaN, Infinity]}']},
    "halves of characters": {"texts": [STREAM, "{}", "{}", '{"text": "\\ud800"}']},
    "ids that are none": {"say": "stream", "header": {"msg_id": [1]}, "parent": {"msg_id": {}}},
}


@pytest.mark.parametrize("step", ODD.values(), ids=ODD)
def test_clients_hear_what_comes_behind_an_odd_message(liar: Kernel, step: dict[str, Any]) -> None:
    with liar.client() as client:
        asked = client.execute(json.dumps([step, AFTER, REPLY, IDLE]))
        assert client.finish(asked) == "after"


def test_bytes_that_are_no_text_are_shown_as_such(kernel: Kernel) -> None:
    with kernel.client() as client:
        assert client.run(r"print('\udce9t\udce9')") == "\ufffdt\ufffd\n"
        assert client.run("print('on')") == "on\n"
