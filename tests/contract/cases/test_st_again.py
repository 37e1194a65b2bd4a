"""Streams that break and are taken up again: by a death, and by a reader who comes back late."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from sandboxd_client import Ended, Sandboxd, SandboxLost, Stdout
from tests.contract.cases.times import scaled
from tests.contract.speaker import Speaker, problem
from tests.contract.test_attach import attach, take
from tests.contract.test_connections import box_of
from tests.support.service import Service

DATES = "while :; do date; sleep 1; done"


def _by_stream(one: Speaker, _: Sandboxd) -> object:
    with one.stream(DATES) as events:
        return list(events)[-1]["problem"]["code"]


def _by_events(one: Speaker, _: Sandboxd) -> object:
    return one.events("dates")[-1]["problem"]["code"]


def _by_attach(one: Speaker, _: Sandboxd) -> object:
    with attach(one, "dates") as socket, suppress(ConnectionClosed):
        while True:
            socket.recv(20)
    return "sandbox_lost" if socket.close_code == 4410 else socket.close_code


def _by_sdk(one: Speaker, client: Sandboxd) -> object:
    with pytest.raises(SandboxLost) as caught:
        list(client.sandbox(one.path.rsplit("/", 1)[1]).process("dates").events())
    return caught.value.code


def _by_terminal(one: Speaker, client: Sandboxd) -> object:
    process = client.sandbox(one.path.rsplit("/", 1)[1]).process("dates")
    with process.attach() as terminal, pytest.raises(SandboxLost) as caught:
        list(terminal)
    return caught.value.code


def _by_call(one: Speaker, _: Sandboxd) -> object:
    return one.post("/execs", {"cmd": DATES}).json()["code"]


@pytest.mark.requirement("ST-09")
@pytest.mark.serial
@pytest.mark.timeout(60)
def test_st_09_a_stream_whose_sandbox_dies_ends_with_that_news(
    open_service: Callable[[], AbstractContextManager[Service]],
    first_process: Callable[[Service, str], int],
) -> None:
    forms = (_by_stream, _by_events, _by_attach, _by_sdk, _by_terminal, _by_call)
    with (
        open_service() as daemon,
        httpx.Client(base_url=daemon.url, timeout=30) as http,
        Sandboxd(daemon.url) as client,
        ThreadPoolExecutor(len(forms)) as pool,
    ):
        made = http.post("/v1/sandboxes", json={"template": "python"}).json()["id"]
        one = Speaker(http, f"/v1/sandboxes/{made}")
        one.start(DATES, exec_id="dates")
        seen = [pool.submit(form, one, client) for form in forms]
        _until_heard(one)
        os.kill(first_process(daemon, box_of(one)), signal.SIGKILL)
        began = time.monotonic()
        assert [form.result(20) for form in seen] == ["sandbox_lost"] * len(forms)
        assert time.monotonic() - began < 10
        problem(one.get("/execs/dates"), 410, "sandbox_lost")


def _until_heard(one: Speaker) -> None:
    """Every stream has had its first line: three commands run, and each wrote one."""
    for _ in range(500):
        found = one.get("/execs").json()["execs"]
        if len(found) == 3 and all(entry["stdout_bytes"] for entry in found):
            return
        time.sleep(0.02)
    raise AssertionError("the commands did not start")


@pytest.mark.requirement("ST-10")
@pytest.mark.timeout(400)
@scaled(1 / 25)
def test_st_10_a_command_is_attached_to_again_much_later(sandbox: Speaker, scale: float) -> None:
    count = f"for n in $(seq 200); do echo $n; sleep {scale}; done; exit 9"
    whole = "".join(f"{n}\n" for n in range(1, 201))
    began, exec_id = time.monotonic(), sandbox.start(count)
    seen, after, head = _first_part(sandbox, exec_id)
    # The row's own wait: nobody is attached meanwhile.
    time.sleep(max(0, began + 150 * scale - time.monotonic()))

    with Sandboxd(str(sandbox.http.base_url).rstrip("/")) as client:
        process = client.sandbox(sandbox.path.rsplit("/", 1)[1]).process(exec_id)
        assert process.info().running
        reads: dict[str, Callable[[], str]] = {
            "events": lambda: seen + _events(sandbox, exec_id, after=after),
            "attach": lambda: head + _attach(sandbox, exec_id, offset=len(head)),
            "sdk": lambda: "".join(
                event.text for event in process.events() if isinstance(event, Stdout)
            ),
            "output": lambda: _output(sandbox, exec_id),
        }
        for _ in range(2):  # while it runs, and again after it ended
            with ThreadPoolExecutor(len(reads)) as pool:
                found = {name: pool.submit(read) for name, read in reads.items()}
                assert {name: one.result() for name, one in found.items()} == dict.fromkeys(
                    reads, whole
                )
            assert sandbox.get(f"/execs/{exec_id}").json()["exit_code"] == 9
        *_, last = process.events()
        assert isinstance(last, Ended)
        assert last.result.exit_code == 9


def _first_part(sandbox: Speaker, exec_id: str) -> tuple[str, int, str]:
    """The first lines by events and by a WebSocket, both then dropped in the middle."""
    seen, after = "", 0
    at = f"{sandbox.path}/execs/{exec_id}/events"
    with sandbox.http.stream("GET", at) as answer:
        for line in answer.iter_lines():
            event: dict[str, Any] = json.loads(line)
            after = event["seq"]
            seen += event.get("data", "")
            if seen.count("\n") >= 5:
                break
    with attach(sandbox, exec_id) as socket:
        head = take(socket, b"\n").decode()
    return seen, after, head


def _events(sandbox: Speaker, exec_id: str, *, after: int) -> str:
    with sandbox.http.stream(
        "GET", f"{sandbox.path}/execs/{exec_id}/events", params={"after": after}, timeout=300
    ) as answer:
        found = [json.loads(line) for line in answer.iter_lines()]
    assert found[-1]["exec"]["exit_code"] == 9
    return "".join(event["data"] for event in found if event["type"] == "stdout")


def _attach(sandbox: Speaker, exec_id: str, *, offset: int) -> str:
    got = b""
    with attach(sandbox, exec_id, stdout=offset) as socket:
        while (frame := socket.recv(300))[0] == 1:
            assert isinstance(frame, bytes)
            got += frame[1:]
    return got.decode()


def _output(sandbox: Speaker, exec_id: str) -> str:
    got, ended = b"", "0"
    while ended == "0":
        answer = sandbox.get(f"/execs/{exec_id}/output", offset=len(got), wait_s=20)
        got += answer.content
        ended = answer.headers["x-ended"] if not answer.content else "0"
    return got.decode()
