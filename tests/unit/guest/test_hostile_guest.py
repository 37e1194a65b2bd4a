"""A guest that speaks nonsense is lost, and nothing it says reaches a caller unlooked at."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import anyio
import pytest
from anyio.abc import ByteStream
from pydantic_core import to_json

from sandboxd.backends.fake.pipes import stream_pair
from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest, GuestLost
from sandboxd.guest.line import guest_failure
from sandboxd.model.claim import Claim
from sandboxd.model.command import Command
from sandboxd.wire.codes import ErrorCode, Fault

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]

RECORD = {
    "exec_id": "e", "state": "ended", "outcome": "exited", "exit_code": 0, "oom_kills": 0,
    "stdout": {"bytes": 0}, "stderr": {"bytes": 0}, "duration_s": 1, "started_at": 1,
}  # fmt: skip
HELLO = {
    "protocol": 1, "protocols": [1], "version": "x", "boot_id": "b", "lease_id": "", "uptime_s": 1,
    "life_left_s": None, "execs_running": 0, "idle_s": 0, "shell": "",
}  # fmt: skip
CALLS: dict[str, Callable[[Guest], Awaitable[object]]] = {
    "hello": lambda guest: guest.hello(),
    "claim": lambda guest: guest.claim(Claim(lease_id="l")),
    "renew": lambda guest: guest.renew(life_s=1),
    "kill": lambda guest: guest.kill_all(),
    "readings": lambda guest: guest.readings(),
    "run": lambda guest: guest.run(Command(exec_id="e", argv=("true",)), wait=True),
    "look": lambda guest: guest.look_exec("e"),
    "list": lambda guest: guest.list_execs(),
    "signal": lambda guest: guest.signal("e", "TERM"),
    "stat": lambda guest: guest.files.stat("/x"),
    "shells": lambda guest: guest.list_shells(),
}


def answer(body: bytes, *, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body


async def ask(script: Callable[[], AsyncGenerator[bytes, None]], call: str) -> object:
    """What becomes of a call to a guest that answers so."""
    results: list[object] = []
    errors: list[Exception] = []
    async with anyio.create_task_group() as tasks:

        async def serve(stream: ByteStream) -> None:
            try:
                await stream.receive()
                async with aclosing(script()) as pieces:
                    async for piece in pieces:
                        await stream.send(piece)
                await anyio.sleep_forever()
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass
            finally:
                await anyio.aclose_forcefully(stream)

        async def connect() -> ByteStream:
            ours, theirs = stream_pair()
            tasks.start_soon(serve, theirs)
            return ours

        guest = Guest(connect)
        try:
            results.append(await CALLS[call](guest))
        except Exception as error:  # noqa: BLE001 - raised below, outside of the task group
            errors.append(error)
        finally:
            with anyio.CancelScope(shield=True):
                await guest.aclose()
            tasks.cancel_scope.cancel()
    if errors:
        raise errors[0]
    return results[0]


async def once(data: bytes) -> AsyncGenerator[bytes, None]:
    """All in one piece."""
    yield data


NONSENSE = {
    "no http": b"\x00\xff" * 100 + b"\r\n\r\n",
    "a head without end": b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000,
    "a length without end": b"HTTP/1.1 200 OK\r\ncontent-length: 999999999999999\r\n\r\n{}",
    "a length below zero": b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n{}",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "a second answer": answer(b"{}") + answer(b"{}"),
    "no json": answer(b"\xff"),
    "deep json": answer(b"[" * 500_000),
    "another type": answer(b"[]"),
    "nothing in it": answer(b"{}"),
    "a huge number": answer(b'{"protocol": ' + b"9" * 5000 + b"}"),
    "a refusal that is none": answer(b"[]", status=409),
    "a refusal of an unknown kind": answer(b'{"code": "root"}', status=400),
    "an unasked upgrade": b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
}


@pytest.mark.parametrize("call", sorted(set(CALLS) - {"claim", "renew"}))
@pytest.mark.parametrize("name", sorted(NONSENSE))
async def test_nonsense_is_a_lost_line_and_no_answer(name: str, call: str) -> None:
    if name == "nothing in it" and call in {"readings", "signal"}:
        return  # an answer in which all may be absent
    with anyio.fail_after(100), pytest.raises(GuestLost):
        await ask(lambda: once(NONSENSE[name]), call)


async def chunks_without_end() -> AsyncGenerator[bytes, None]:
    yield b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    while True:
        yield b"10000\r\n" + b"x" * 65536 + b"\r\n"


@pytest.mark.parametrize("call", ["hello", "claim", "renew", "stat", "list"])
async def test_a_body_without_end_is_cut_where_its_bound_is(call: str) -> None:
    with anyio.fail_after(100), pytest.raises(GuestLost):
        await ask(chunks_without_end, call)


async def interim_answers_without_end() -> AsyncGenerator[bytes, None]:
    while True:
        yield b"HTTP/1.1 103 Early\r\n\r\n" * 100
        await anyio.sleep(0.1)


async def drip() -> AsyncGenerator[bytes, None]:
    yield b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n"
    while True:
        await anyio.sleep(5)
        yield b" "


async def silence() -> AsyncGenerator[bytes, None]:
    await anyio.sleep_forever()
    yield b""


@pytest.mark.parametrize("script", [interim_answers_without_end, drip, silence])
async def test_whoever_asks_can_always_stop_waiting(
    script: Callable[[], AsyncGenerator[bytes, None]],
) -> None:
    with anyio.fail_after(100), pytest.raises(TimeoutError):
        with anyio.fail_after(10):
            await ask(script, "hello")


@pytest.mark.parametrize(
    "said",
    [
        {"exit_code": None}, {"exit_code": -1}, {"exit_code": True}, {"exit_code": "0"},
        {"exit_code": 0.0}, {"exit_code": 256}, {"exit_code": [0]}, {"outcome": "success"},
        {"outcome": None}, {"outcome": "signaled", "exit_code": None}, {"state": "running"},
        {"duration_s": -1}, {"duration_s": 1e400}, {"duration_s": None}, {"exec_id": "\ud800"},
        {"detail": "\udcff"}, {"detail": "x" * 70_000}, {"oom_kills": -1}, {"stdout": None},
        {"stdout": {"bytes": 1, "head_b64": "AAAA"}}, {"stdout": {"bytes": -1}},
        {"stdout": {"bytes": 3, "head_b64": "%%%%"}}, {"stdout": {"bytes": 2**70}},
    ],
)  # fmt: skip
async def test_a_record_that_cannot_be_true_is_no_record(said: dict[str, object]) -> None:
    body = json.dumps({**RECORD, **said}).encode()
    with anyio.fail_after(100), pytest.raises(GuestLost):
        await ask(lambda: once(answer(body)), "run")


@pytest.mark.parametrize("said", [{"idle_s": -1e9}, {"uptime_s": -1}, {"life_left_s": -5}])
async def test_time_does_not_run_backwards(said: dict[str, object]) -> None:
    body = json.dumps({**HELLO, **said}).encode()
    with anyio.fail_after(100), pytest.raises(GuestLost):
        await ask(lambda: once(answer(body)), "hello")


@pytest.mark.parametrize(
    "refusal",
    [
        '{"code": "conflict", "detail": "\\ud800"}',
        '{"code": "conflict", "detail": {"a": 1}}',
        '{"code": "conflict", "detail": "x", "details": {"a": ' + "[" * 300 + "]" * 300 + "}}",
        '{"code": "conflict", "detail": "x", "details": {"\\udc00": 1}}',
        '{"code": "conflict", "detail": "x", "details": {"a": NaN}}',
        '{"code": "conflict", "detail": "x", "details": {"a": ' + "9" * 4000 + "}}",
        '{"code": "conflict", "detail": "x", "details": [' + "1," * 9999 + "1]}",
        '{"code": "conflict", "detail": "' + "x" * 60_000 + '"}',
    ],
)
async def test_what_a_refusal_says_can_always_be_passed_on(refusal: str) -> None:
    error: SandboxdError = guest_failure(refusal.encode())
    passed_on = to_json({"detail": error.detail, "details": error.details})
    assert len(passed_on) < 5000
    assert b"NaN" not in passed_on


@pytest.mark.parametrize(
    ("told", "fault", "mask"),
    [
        ('"details": {"host_short": true}', Fault.INFRA, True),
        ('"details": {"host_short": 1}', Fault.AGENT, False),
        ('"details": {"from_inside": true}', Fault.AGENT, False),
        ('"details": {"from_inside": true, "host_short": true}', Fault.INFRA, True),
        ('"details": {}', Fault.AGENT, False),
    ],
)
async def test_a_machine_whose_disk_is_full_is_no_fault_of_the_agent(
    told: str, fault: Fault, mask: bool
) -> None:
    error = guest_failure(f'{{"code": "disk_full", "detail": "x", {told}}}'.encode())
    assert (error.code, error.fault, error.mask) == (ErrorCode.DISK_FULL, fault, mask)


async def test_facts_of_a_refusal_are_kept() -> None:
    refusal = (
        b'{"code": "range", "detail": "x", "details": {"kept": [[0, 5], [9, 12]], "size": 12}}'
    )
    assert guest_failure(refusal).details == {"kept": [[0, 5], [9, 12]], "size": 12}
