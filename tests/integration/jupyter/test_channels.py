"""The channels of a kernel, by the bare protocol: who hears what, in which order, until when."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from uuid import uuid4

import httpx
import pytest
from jupyter_server.services.kernels.connection.base import (
    deserialize_binary_message,
    deserialize_msg_from_ws_v1,
    serialize_binary_message,
    serialize_msg_to_ws_v1,
)
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.support.jupyter import Gateway, Kernel, is_state, until

pytestmark = pytest.mark.timeout(90)  # kernels start slowly on a busy machine

V1 = Subprotocol("v1.kernel.websocket.jupyter.org")


def test_a_request_without_a_channel_goes_to_the_shell(kernel: Kernel) -> None:
    with kernel.client() as client:
        assert client.finish(client.execute("print(6 * 7)", channel=None)) == "42\n"


def test_every_client_hears_what_is_shown_and_only_the_one_that_asked_its_reply(
    kernel: Kernel,
) -> None:
    with kernel.client() as one, kernel.client() as two:
        two.run("pass")
        asked = one.execute("print('seen by all')")
        assert one.finish(asked) == "seen by all\n"
        two.until(
            lambda said: is_state("idle")(said) and said["parent_header"].get("msg_id") == asked
        )
        assert [said["content"]["text"] for said in two.of(asked, "stream")] == ["seen by all\n"]
        assert not two.of(asked, "execute_reply")
        assert kernel.model()["connections"] == 2


def test_cells_and_clients_share_one_kernel_and_its_order(kernel: Kernel) -> None:
    with kernel.client() as client:
        client.run("order = []")
        slow = client.execute("import time; time.sleep(0.7); order.append('client 1')")
        until(lambda: kernel.model()["execution_state"] == "busy")
        for number in (1, 2):
            code = f"order.append('cell {number}'); time.sleep(0.2)"
            kernel.cell(code, cell_id=f"c{number}", detach=True, timeout_s=0.6)
        last = client.execute("order.append('client 2')")
        client.finish(slow)
        client.finish(last)
        assert kernel.cell("print(order)")["stdout"] == (
            "['client 1', 'cell 1', 'cell 2', 'client 2']\n"
        )
        # The time that they waited for the client was none of theirs.
        for number in (1, 2):
            path = f"{kernel.gateway.sandbox}/kernels/{kernel.id}/cells/c{number}?wait_s=9"
            assert kernel.gateway.http.get(path).json()["outcome"] == "ok"


def test_what_a_cell_shows_reaches_clients_and_what_the_daemon_asks_for_itself_does_not(
    kernel: Kernel,
) -> None:
    with kernel.client() as client:
        assert kernel.cell("print('from a cell')")["stdout"] == "from a cell\n"
        client.until(lambda said: said["msg_type"] == "stream")
        client.run("pass")
        parents = {said["parent_header"].get("msg_id", "") for said in client.heard}
        assert not [parent for parent in parents if parent.startswith("own")]


def test_input_is_asked_of_the_client_whose_code_reads_it(kernel: Kernel) -> None:
    with kernel.client() as one, kernel.client() as two:
        asked = one.execute("print('hello', input('who? '))", stdin=True)
        request = one.until(lambda said: said["msg_type"] == "input_request")
        assert request["content"]["prompt"] == "who? "
        one.send("input_reply", {"value": "Ada"}, channel="stdin", parent_header=request["header"])
        assert one.finish(asked) == "hello Ada\n"
        two.run("pass")
        assert "input_request" not in {said["msg_type"] for said in two.heard}


def test_an_interrupt_ends_what_a_client_runs_and_keeps_variables(kernel: Kernel) -> None:
    with kernel.client() as client:
        client.run("kept = 1")
        asked = client.execute("import time\nprint('on')\nwhile True: time.sleep(0.05)")
        client.until(lambda said: said["msg_type"] == "stream")
        http = kernel.gateway.http
        assert http.post(f"{kernel.url}/interrupt", json={}).status_code == 204
        client.finish(asked)
        assert client.of(asked, "error")[0]["content"]["ename"] == "KeyboardInterrupt"
        assert client.run("print(kept)") == "1\n"


def test_a_death_is_told_and_a_restart_brings_the_same_connection_a_new_kernel(
    kernel: Kernel,
) -> None:
    http = kernel.gateway.http
    with kernel.client() as client:
        client.execute("import os; os._exit(3)")
        client.until(is_state("dead"))
        assert kernel.model()["execution_state"] == "dead"
        restarted = http.post(f"{kernel.url}/restart", json={})
        assert (restarted.status_code, restarted.json()["execution_state"]) == (200, "idle")
        client.until(is_state("restarting"))
        assert client.run("print('again')") == "again\n"
        http.post(f"{kernel.url}/restart", json={})
        client.until(is_state("restarting"))
        assert client.run("print('and again')") == "and again\n"


def test_a_session_that_comes_back_hears_what_it_missed(kernel: Kernel) -> None:
    session = uuid4().hex
    with kernel.client(session=session) as client:
        client.run("import time")
        asked = client.execute("time.sleep(0.5); print('while away')")
        client.until(is_state("busy"))
    until(lambda: kernel.model()["execution_state"] == "idle")
    with kernel.client(session=session) as client:
        assert client.finish(asked) == "while away\n"
    with kernel.client() as stranger:
        stranger.run("pass")
        assert not stranger.of(asked, "stream")


def test_a_session_by_a_second_connection_closes_the_first(kernel: Kernel) -> None:
    session = uuid4().hex
    with kernel.client(session=session) as first, kernel.client(session=session) as second:
        with pytest.raises(ConnectionClosed) as closed:
            first.until(lambda said: False)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 4409
        assert second.run("print(1)") == "1\n"


def test_a_client_that_takes_nothing_is_told_so_and_holds_up_nobody(kernel: Kernel) -> None:
    # 50 MB, half as much again as is kept for a reader, no faster than a quick one takes it.
    flood = "import time\nfor i in range(800): print('x' * 65536, flush=True); time.sleep(0.01)"
    with (
        kernel.client(max_queue=1) as slow,
        kernel.client() as quick,
    ):
        slow.execute("pass")  # and from now on it reads no more
        asked = quick.execute(flood)
        printed = quick.finish(asked)
        assert len(printed) == 800 * 65537
        assert quick.run("print('next')") == "next\n"
        with pytest.raises(ConnectionClosed) as closed:
            slow.until(lambda said: False, within_s=40)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1013
        assert "lost" in closed.value.rcvd.reason or "too long" in closed.value.rcvd.reason


def test_the_parts_of_messages_travel_whole_in_the_newer_protocol(kernel: Kernel) -> None:
    address = "ws" + kernel.url.removeprefix("http") + "/channels"
    with kernel.client() as writer, connect(address, subprotocols=[V1]) as socket:
        assert socket.subprotocol == V1
        message = writer.message("execute_request", {"code": "print('by parts')"})
        parts = (message[name] for name in ("header", "parent_header", "metadata", "content"))
        socket.send(serialize_msg_to_ws_v1([json.dumps(part).encode() for part in parts], "shell"))
        texts = []
        while True:
            frame = socket.recv(timeout=20)
            assert isinstance(frame, bytes)
            channel, raw = deserialize_msg_from_ws_v1(frame)
            header, parent, _, content = (json.loads(part) for part in raw[:4])
            assert parent["msg_id"] == message["header"]["msg_id"]
            if header["msg_type"] == "stream":
                texts.append((channel, content["text"]))
            if content.get("execution_state") == "idle":
                break
        assert texts == [("iopub", "by parts\n")]


def test_buffers_travel_both_ways(kernel: Kernel) -> None:
    target = (
        "from comm import get_comm_manager\n"
        "def opened(comm, message):\n"
        "    comm.on_msg(lambda m: comm.send({'n': 1}, buffers=[bytes(m['buffers'][0])[::-1]]))\n"
        "get_comm_manager().register_target('echo', opened)\n"
    )
    with kernel.client() as client:
        client.run(target)
        client.send("comm_open", {"comm_id": "c1", "target_name": "echo", "data": {}})
        sent = client.message("comm_msg", {"comm_id": "c1", "data": {}})
        client.socket.send(serialize_binary_message({**sent, "buffers": [b"\x00abc\xff"]}))
        while True:
            frame = client.socket.recv(timeout=20)
            if isinstance(frame, bytes):
                break
        said = deserialize_binary_message(frame)
        assert said["header"]["msg_type"] == "comm_msg"
        assert [bytes(each) for each in said["buffers"]] == [b"\xffcba\x00"]


@pytest.mark.parametrize(
    "frame",
    [
        "no JSON", "[]", '{"header": {}}',
        '{"header": {"msg_id": "1", "msg_type": "x"}, "channel": "iopub"}',
        '{"header": {"msg_id": "1", "msg_type": "x"}, "content": [1]}', b"", b"\0\0\0\2",
        struct.pack(">II", 1, 1 << 30), "[" * 100_000,
    ],
    ids=["text", "list", "empty", "iopub", "content", "nothing", "short", "outside", "deep"],
)  # fmt: skip
def test_a_frame_that_is_no_message_closes_its_connection_alone(
    kernel: Kernel, frame: str | bytes
) -> None:
    with kernel.client() as bad, kernel.client() as good:
        bad.socket.send(frame)
        with pytest.raises(ConnectionClosed) as closed:
            bad.until(lambda said: False)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1003
        assert good.run("print(1)") == "1\n"


def test_the_same_request_again_runs_once_and_keeps_no_cell_waiting(kernel: Kernel) -> None:
    with kernel.client() as client:
        content = {"code": "n = globals().get('n', 0) + 1", "silent": False, "store_history": True}
        message = json.dumps(client.message("execute_request", content))
        client.socket.send(message)
        client.finish(json.loads(message)["header"]["msg_id"])
        client.socket.send(message)
        assert client.run("print(n)") == "1\n"
        assert kernel.cell("print(n)", timeout_s=20)["stdout"] == "1\n"
        assert kernel.model()["execution_state"] == "idle"


@pytest.mark.parametrize("msg_id", ["own-ready", "cell.c1"])
def test_an_id_that_is_the_daemons_own_is_refused(kernel: Kernel, msg_id: str) -> None:
    with kernel.client() as client:
        message = client.message("execute_request", {"code": "1"})
        message["header"]["msg_id"] = msg_id
        client.socket.send(json.dumps(message))
        with pytest.raises(ConnectionClosed) as closed:
            client.until(lambda said: False)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 4422


def test_a_frame_that_is_too_large_closes_with_1009(kernel: Kernel) -> None:
    with kernel.client() as client:
        client.run("pass")
        assert client.run(f"print(len({'a' * (3 << 20)!r}))") == f"{3 << 20}\n"
        with suppress(ConnectionClosed):  # it may hear of it while it sends
            client.socket.send("x" * ((16 << 20) + 1))
        with pytest.raises(ConnectionClosed) as closed:
            client.until(lambda said: False)
        # Where it was still sending, the end of the connection may overtake the word about it.
        assert closed.value.rcvd is None or closed.value.rcvd.code == 1009
    with kernel.client() as client:
        client.run("pass")


def test_a_kernel_that_is_shut_down_ends_its_connections(kernel: Kernel) -> None:
    http = kernel.gateway.http
    with kernel.client() as client:
        client.run("pass")
        assert http.delete(kernel.url).status_code == 204
        with pytest.raises(ConnectionClosed) as closed:
            client.until(lambda said: False)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1000
    assert is_state("dead")(client.heard[-1])
    assert http.get(kernel.url).status_code == 404
    assert http.get(f"{kernel.gateway.url}/api/kernels").json() == []


def test_the_end_of_the_lease_closes_with_4410(http: httpx.Client) -> None:
    with Gateway.lease(http) as gateway, gateway.start().client() as client:
        client.run("pass")
        http.delete(gateway.sandbox)
        with pytest.raises(ConnectionClosed) as closed:
            client.until(lambda said: False)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 4410


def test_a_token_that_may_only_read_opens_no_channels(kernel: Kernel) -> None:
    http, sandbox = kernel.gateway.http, kernel.gateway.sandbox
    token = http.post(f"{sandbox}/tokens", json={"rights": "read"}).json()
    below = token["url"] + f"/jupyter/api/kernels/{kernel.id}"
    assert http.get(below).status_code == 200
    with (
        pytest.raises(InvalidStatus) as refused,
        connect("ws" + below.removeprefix("http") + "/channels"),
    ):
        pass
    assert refused.value.response.status_code == 403


def test_what_a_client_runs_is_use_and_its_open_connection_alone_is_not(
    http: httpx.Client,
) -> None:
    with Gateway.lease(http, "short") as gateway, gateway.start().client() as client:
        # Longer than the idle timeout of a second.
        assert client.run("import time; time.sleep(2.5); print('done')") == "done\n"
        with pytest.raises(ConnectionClosed) as closed:
            client.until(lambda said: False)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 4410
        assert http.get(gateway.sandbox).json()["end"]["reason"] == "idle"
