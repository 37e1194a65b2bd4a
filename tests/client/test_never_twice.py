"""What may have started is never started again: only asked for, under its id."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxd_client import (
    ApiUnreachable,
    AsyncSandboxd,
    Capacity,
    DiskFull,
    Ended,
    Internal,
    SandboxLost,
    Stdout,
)
from tests.client.faulty_server import (
    CUT,
    HANG,
    Act,
    answer,
    faulty_client,
    faulty_server,
    half,
    lines,
    problem,
    proxy_error,
)

pytestmark = pytest.mark.anyio

EXECS = "/v1/sandboxes/s/execs"


def _exec(**members: Any) -> dict[str, Any]:
    told = {"exec_id": "e", "state": "ended", "outcome": "exited", "exit_code": 0}
    return {**told, "stdout": "hi", **members}


RUNNING = _exec(state="running", outcome=None, exit_code=None)
LEASED = {"id": "sbx-1", "state": "leased"}


@pytest.mark.requirement("TO-09")
@pytest.mark.parametrize("lost", [CUT, half(200, _exec()), proxy_error(502)])
async def test_a_command_whose_answer_is_lost_is_asked_for_under_its_id(lost: Any) -> None:
    async with faulty_client(lost, lost, answer(200, _exec())) as (server, client):
        with anyio.fail_after(10):
            result = await client.sandbox("s").exec("true")
    assert result.ok
    assert server.said() == [f"POST {EXECS}"] * 3
    assert len({seen.json["exec_id"] for seen in server.seen}) == 1


@pytest.mark.requirement("TO-05")
async def test_a_long_command_is_waited_for_in_rounds_and_posted_once() -> None:
    """A cut in between costs one more round of waiting."""
    acts = [answer(202, RUNNING), answer(200, RUNNING), CUT, answer(200, _exec())]
    async with faulty_client(*acts) as (server, client):
        with anyio.fail_after(10):
            result = await client.sandbox("s").exec("make", exec_id="mine")
    assert result.ok
    assert server.said() == [f"POST {EXECS}", *[f"GET {EXECS}/mine"] * 3]
    assert all(seen.query["wait_s"] == ["25"] for seen in server.seen)


@pytest.mark.requirement("TO-09")
async def test_a_wait_that_is_cut_late_is_begun_again_as_any_other() -> None:
    """Patience is for a daemon that is away, and not used up by one that was busy."""
    late = Act(cut=True, after_s=0.6)
    acts = [late, answer(202, RUNNING), late, answer(200, _exec())]
    async with faulty_client(*acts, patience_s=0.5) as (server, client):
        with anyio.fail_after(10):
            assert (await client.sandbox("s").exec("make", exec_id="mine")).ok
    assert server.said() == [f"POST {EXECS}"] * 2 + [f"GET {EXECS}/mine"] * 2


async def test_a_signal_whose_answer_is_lost_is_not_sent_again() -> None:
    async with faulty_client(CUT) as (server, client):
        with pytest.raises(ApiUnreachable) as caught:
            await client.sandbox("s").process("e").signal("INT")
    assert len(server.seen) == 1
    assert not caught.value.retry_safe
    assert (caught.value.mask, caught.value.fault) == (True, "infra")


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_proxys_error_is_infra_and_never_the_daemons_word(status: int) -> None:
    async with faulty_client(proxy_error(status)) as (_server, client):
        with pytest.raises(ApiUnreachable) as caught:
            await client.sandbox("s").process("e").signal("INT")
    assert (caught.value.status, caught.value.mask) == (status, True)


@pytest.mark.parametrize("status", [401, 413])
async def test_what_a_proxy_refuses_for_its_kind_is_told_at_once(status: int) -> None:
    async with faulty_client(then=proxy_error(status)) as (server, client):
        with anyio.fail_after(5), pytest.raises(ApiUnreachable) as caught:
            await client.sandbox("s").files.write("x", b"much")
    assert (caught.value.status, caught.value.mask, len(server.seen)) == (status, True, 1)


async def test_an_answer_that_is_no_json_is_never_a_result() -> None:
    async with faulty_client(answer(200, {})) as (_server, client):
        with pytest.raises(Internal):
            await client.sandbox("s").exec("true")


async def test_an_unknown_outcome_is_an_error_and_never_guessed() -> None:
    told = answer(200, _exec(outcome="teleported", exit_code=None))
    async with faulty_client(told) as (_server, client):
        with pytest.raises(Internal, match="teleported") as caught:
            await client.sandbox("s").exec("true")
    assert caught.value.mask


async def test_nobody_there_is_tried_within_the_patience_and_then_told() -> None:
    async with faulty_server() as server:
        pass
    async with AsyncSandboxd(server.url, patience_s=0.3) as client:
        with anyio.fail_after(5), pytest.raises(ApiUnreachable) as caught:
            await client.version()
    assert (caught.value.retry_safe, caught.value.mask) == (True, True)


async def test_a_refused_call_goes_through_once_the_daemon_is_back() -> None:
    async with faulty_server() as gone:
        port = int(gone.url.rpartition(":")[2])
    delivered = anyio.Event()

    async def ask(client: AsyncSandboxd) -> None:
        await client.sandbox("s").process("e").signal("INT")  # not even this is lost
        delivered.set()

    with anyio.fail_after(10):
        async with AsyncSandboxd(gone.url) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(ask, client)
            await anyio.wait_all_tasks_blocked()
            async with faulty_server(answer(200, {"delivered": True}), port=port) as server:
                await delivered.wait()
    assert len(server.seen) == 1


async def test_passing_states_are_tried_again_when_the_server_says() -> None:
    passing = [
        problem("shutting_down", 503, retry_safe=True, retry_after_s=0.01),
        problem("backend_unavailable", 503, retry_safe=True, retry_after_s=0.01),
    ]
    async with faulty_client(*passing, answer(200, {"version": "1"})) as (server, client):
        assert (await client.version()).version == "1"
    assert len(server.seen) == 3


async def test_a_wait_that_ends_after_the_deadline_is_not_begun() -> None:
    full = problem("capacity", 503, retry_safe=True, retry_after_s=50)
    async with faulty_client(full) as (server, client):
        with anyio.fail_after(5), pytest.raises(Capacity):
            await client.lease("t", wait_timeout_s=20)
    assert len(server.seen) == 1


async def test_a_stale_connection_is_replaced_also_for_what_may_be_sent_only_once() -> None:
    acts = [answer(200, {"version": "1"}, cut=True), answer(200, {"delivered": True})]
    async with faulty_client(*acts) as (server, client):
        await client.version()
        with anyio.fail_after(5):
            await server.line_closed.wait()
        assert await client.sandbox("s").process("e").signal("INT")
    assert [seen.line for seen in server.seen] == [1, 2]


async def test_connections_are_used_again() -> None:
    async with faulty_client(then=answer(200, {"version": "1"})) as (server, client):
        for _ in range(5):
            await client.version()
    assert server.lines_opened == 1


async def test_a_lease_whose_answer_is_lost_is_asked_for_under_its_key() -> None:
    async with faulty_client(CUT, half(201, LEASED), answer(201, LEASED)) as (server, client):
        sandbox = await client.lease("t")
    assert sandbox.id == "sbx-1"
    assert len({seen.body for seen in server.seen}) == 1


async def test_a_lease_that_was_refused_is_asked_for_anew_under_another_key() -> None:
    end = {"reason": "make_failed", "code": "capacity", "fault": "infra", "mask": True}
    refused = answer(201, {"id": "sbx-0", "state": "ended", "end": end})
    async with faulty_client(refused, answer(201, LEASED)) as (server, client):
        sandbox = await client.lease("t")
    assert sandbox.id == "sbx-1"
    assert len({seen.json["idempotency_key"] for seen in server.seen}) == 2


async def test_a_lease_cancelled_while_its_answer_is_on_the_way_is_given_back() -> None:
    acts = [HANG, answer(201, LEASED), answer(200, {"id": "sbx-1", "state": "ended"})]
    async with faulty_client(*acts) as (server, client):
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                arrived = server.arrived
                tasks.start_soon(client.lease("t").__aenter__)
                await arrived.wait()
                tasks.cancel_scope.cancel()
    said = ["POST /v1/sandboxes", "POST /v1/sandboxes", "DELETE /v1/sandboxes/sbx-1"]
    assert server.said() == said
    assert server.seen[0].body == server.seen[1].body


async def test_a_cancelled_lease_under_the_callers_key_is_left_for_the_caller() -> None:
    async with faulty_client(HANG) as (server, client):
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                arrived = server.arrived
                tasks.start_soon(client.lease("t", idempotency_key="mine").__aenter__)
                await arrived.wait()
                tasks.cancel_scope.cancel()
    assert server.said() == ["POST /v1/sandboxes"]


def _out(seq: int, text: str) -> dict[str, Any]:
    return {"seq": seq, "type": "stdout", "stream": "stdout", "offset": 0, "data": text}


STARTED = {"seq": 1, "type": "started", "started_at": 1.0}
ENDED = {"seq": 9, "type": "ended", "exec": _exec()}


async def test_a_cut_stream_is_attached_to_where_it_broke_and_nothing_comes_twice() -> None:
    acts = [
        CUT,
        lines(STARTED, _out(2, "a"), b'{"seq": 3, "type": "stdo', end=False),
        lines(_out(2, "a"), _out(3, "b"), {"type": "keepalive"}, end=False),
        lines(_out(4, "c"), ENDED),
    ]
    async with faulty_client(*acts) as (server, client):
        with anyio.fail_after(10):
            events = [e async for e in client.sandbox("s").stream("x", exec_id="e")]
    assert b"".join(e.data for e in events if isinstance(e, Stdout)) == b"abc"
    assert [e.seq for e in events] == [1, 2, 3, 4, 9]
    assert isinstance(events[-1], Ended)
    assert server.said() == [f"POST {EXECS}"] * 2 + [f"GET {EXECS}/e/events"] * 2
    assert [seen.query.get("after") for seen in server.seen[2:]] == [["2"], ["3"]]


@pytest.mark.requirement("ST-09")
async def test_a_stream_that_cannot_go_on_raises_what_it_was_told() -> None:
    """ST-09: never a silent end."""
    told = {"code": "sandbox_lost", "detail": "gone", "mask": True, "fault": "unknown"}
    act = lines(STARTED, {"type": "error", "problem": told})
    async with faulty_client(act) as (_server, client):
        with pytest.raises(SandboxLost, match="gone"):
            async for _ in client.sandbox("s").stream("x"):
                pass


async def test_a_stream_that_is_cut_for_good_raises_in_the_end() -> None:
    async with faulty_client(lines(STARTED, end=False), patience_s=0.3) as (_server, client):
        with anyio.fail_after(10), pytest.raises(ApiUnreachable) as caught:
            async for _ in client.sandbox("s").stream("x"):
                pass
    assert caught.value.mask


async def test_a_stream_goes_on_through_a_restart_of_the_daemon() -> None:
    told = {"code": "shutting_down", "detail": "bye", "retry_safe": True}
    acts = [lines(STARTED, {"type": "error", "problem": told}), CUT, lines(_out(2, "z"), ENDED)]
    async with faulty_client(*acts) as (_server, client):
        events = [e async for e in client.sandbox("s").stream("x")]
    assert [e.seq for e in events] == [1, 2, 9]


async def test_input_whose_answer_is_lost_is_sent_again_at_its_offset() -> None:
    acts = [answer(200, {"offset": 0}), CUT, answer(200, {"offset": 3}), answer(200, {"offset": 3})]
    async with faulty_client(*acts) as (server, client):
        process = client.sandbox("s").process("e")
        await process.write("abc")
        await process.close_stdin()
    told = [(seen.query["offset"][0], seen.query["eof"][0], seen.body) for seen in server.seen]
    assert told == [
        ("0", "false", b""),
        ("0", "false", b"abc"),
        ("0", "false", b"abc"),
        ("3", "true", b""),
    ]


def _file(body: bytes, *, size: int | None = None) -> Act:
    whole = len(body) if size is None else size
    return Act(answer=b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % whole + body, cut=True)


async def test_a_file_that_is_cut_is_read_again_and_halves_are_never_joined() -> None:
    """It may be another file by now."""
    acts = [_file(b"old!", size=10), _file(b"new content")]
    async with faulty_client(*acts) as (server, client):
        assert await client.sandbox("s").files.read("f") == b"new content"
    assert [seen.query.get("offset") for seen in server.seen] == [None, None]


async def test_chunks_of_a_file_that_is_cut_end_in_an_error() -> None:
    async with faulty_client(_file(b"0123", size=10)) as (_server, client):
        with pytest.raises(ApiUnreachable):
            async for _ in client.sandbox("s").files.read_chunks("f"):
                pass


def _contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


async def test_a_download_is_whole_or_not_at_all(tmp_path: Path) -> None:
    stat = answer(200, {"path": "/f", "name": "f", "type": "file", "size": 10})
    target = tmp_path / "f"
    target.write_text("what was here")
    async with faulty_client(stat, then=_file(b"0123", size=10), patience_s=0.1) as (_, client):
        with pytest.raises(ApiUnreachable):
            await client.sandbox("s").files.download("f", target)
    assert _contents(tmp_path) == {"f": "what was here"}


async def test_an_answer_that_comes_before_the_body_was_read_is_heard() -> None:
    """A full disk is a full disk, not a lost connection."""
    async with faulty_client() as (server, client):
        server.refuse_bodies = problem("disk_full", 507)
        with anyio.fail_after(10), pytest.raises(DiskFull):
            await client.sandbox("s").files.write("f", bytes(32 << 20))


async def test_a_stream_that_is_left_early_gives_its_connection_back() -> None:
    acts = [lines(STARTED, _out(2, "a"), ENDED), answer(200, {"version": "1"})]
    async with faulty_client(*acts, connections=1) as (_, client):
        async with aclosing(client.sandbox("s").stream("x")) as events:
            async for _event in events:
                break
        with anyio.fail_after(5):
            assert (await client.version()).version == "1"


async def test_slots_come_back_however_a_call_ends() -> None:
    acts = [CUT, HANG, HANG, half(200, {"version": "1"}), problem("not_found", 404)]
    ok = answer(200, {"version": "1"})
    async with faulty_client(*acts, then=ok, connections=1, patience_s=0) as (server, client):
        with anyio.fail_after(10):
            with pytest.raises(ApiUnreachable):
                await client.version()
            for _ in range(2):
                async with anyio.create_task_group() as tasks:
                    arrived = server.arrived
                    tasks.start_soon(client.version)
                    await arrived.wait()
                    tasks.cancel_scope.cancel()
            for _ in range(2):
                with pytest.raises(Exception, match=r"not_found|lost"):
                    await client.version()
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(client.version)
    assert server.lines_opened <= 6
