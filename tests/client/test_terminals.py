"""Attached commands as the SDK's users have them: typed into, read, cut off, and found again."""

from __future__ import annotations

import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from sandboxd_client import (
    AsyncSandbox,
    AsyncSandboxd,
    AsyncTerminal,
    Conflict,
    Ended,
    ExecResult,
    Forbidden,
    Gap,
    LeaseEnded,
    NotFound,
    Sandboxd,
    Stderr,
    Stdout,
)
from sandboxd_client._core.input_tail import InputTail
from tests.faults.account import free_port
from tests.support.cuts import open_cutting_proxy
from tests.support.daemon import RunningDaemon
from tests.support.service import service

pytestmark = pytest.mark.anyio

_CHANCE = random.Random(20)  # noqa: S311 - the same in every run, no secret


def _noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)  # noqa: S311 - no secret either


@pytest.fixture
async def sandbox(client: AsyncSandboxd) -> AsyncIterator[AsyncSandbox]:
    """A sandbox of its own for each test."""
    async with client.lease("python") as sandbox:
        yield sandbox


async def read(terminal: AsyncTerminal, count: int) -> bytes:
    """So many bytes of its output."""
    data, start = b"", None
    with anyio.fail_after(10):
        while len(data) < count:
            event = await anext(terminal)
            assert isinstance(event, Stdout)
            start = event.offset if start is None else start
            assert event.offset == start + len(data)
            data += event.data
    return data


async def read_to_end(terminal: AsyncTerminal) -> tuple[bytes, ExecResult]:
    """All that still comes, and how it ended."""
    data = b""
    with anyio.fail_after(15):
        async for event in terminal:
            if isinstance(event, Ended):
                return data, event.result
            assert isinstance(event, Stdout)
            data += event.data
    raise AssertionError("no end was told")


async def test_what_is_typed_comes_back_and_the_end_is_the_last(sandbox: AsyncSandbox) -> None:
    process = await sandbox.start("cat; echo oops >&2; exit 3", stdin_open=True)
    async with process.attach() as terminal:
        await terminal.send("héllo")
        assert await read(terminal, 6) == "héllo".encode()
        await terminal.close_input()
        with anyio.fail_after(10):
            events = [event async for event in terminal]
    assert isinstance(events[0], Stderr)
    assert events[0].text == "oops\n"
    assert isinstance(events[-1], Ended)
    assert (events[-1].result.exit_code, events[-1].result.stdout) == (3, "")


async def test_attaching_again_goes_on_from_offsets(sandbox: AsyncSandbox) -> None:
    process = await sandbox.start("cat", stdin_open=True)
    async with process.attach() as terminal:
        await terminal.send("first")
        assert await read(terminal, 5) == b"first"
    async with sandbox.process(process.exec_id).attach(stdout=2) as terminal:
        await terminal.send("second")
        event = await anext(terminal)
        assert isinstance(event, Stdout)
        assert event.offset == 2
        assert event.data + await read(terminal, 9 - len(event.data)) == b"rstsecond"


async def test_several_may_type_where_they_say_so(sandbox: AsyncSandbox) -> None:
    process = await sandbox.start("cat", stdin_open=True)
    async with process.attach(shared=True) as one, process.attach(shared=True) as other:
        await one.send("a")
        assert await read(one, 1) == await read(other, 1) == b"a"
        await other.send("b")
        assert await read(one, 1) == await read(other, 1) == b"b"
        await one.close_input()
        assert (await read_to_end(other))[1].ok


async def test_signals_do_not_wait_behind_input_and_say_what_they_hit(
    sandbox: AsyncSandbox,
) -> None:
    process = await sandbox.start(["sleep", "60"], stdin_open=True)
    async with process.attach() as terminal:
        assert await terminal.signal("TERM")
        _, result = await read_to_end(terminal)
        assert result.signal == "TERM"
        assert not await terminal.signal("TERM")


async def test_a_command_without_input_is_watched_and_typing_is_refused(
    sandbox: AsyncSandbox,
) -> None:
    process = await sandbox.start("echo hello; sleep 60")
    async with process.attach() as terminal:
        assert await read(terminal, 6) == b"hello\n"
        with pytest.raises(Conflict):
            await terminal.send("x")
        with pytest.raises(Conflict):
            await terminal.close_input()
        await process.kill()
        assert (await read_to_end(terminal))[1].outcome == "killed"


async def test_a_token_that_only_reads_watches(
    client: AsyncSandboxd, sandbox: AsyncSandbox
) -> None:
    process = await sandbox.start("cat", stdin_open=True)
    token = await sandbox.token("read")
    async with (
        AsyncSandboxd(client.url, key=token.token) as reader,
        reader.sandbox(sandbox.id).process(process.exec_id).attach() as terminal,
    ):
        await process.write("seen")
        assert await read(terminal, 4) == b"seen"
        with pytest.raises(Forbidden):
            await terminal.send("x")


async def test_what_was_not_kept_is_told(sandbox: AsyncSandbox) -> None:
    process = await sandbox.start("head -c 100000 /dev/zero", output_limit_bytes=2048)
    await process.wait(timeout_s=10)
    async with process.attach() as terminal:
        events = [event async for event in terminal]
    gaps = [event for event in events if isinstance(event, Gap)]
    kept = sum(len(event.data) for event in events if isinstance(event, Stdout))
    assert [gap.bytes + kept for gap in gaps] == [100_000]


async def test_a_command_or_a_lease_that_is_not_there_raises(sandbox: AsyncSandbox) -> None:
    with pytest.raises(NotFound):
        async with sandbox.process("nothing").attach():
            pass
    process = await sandbox.start("cat", stdin_open=True)
    async with process.attach() as terminal:
        await sandbox.release()
        with pytest.raises(LeaseEnded) as caught, anyio.fail_after(10):
            await anext(terminal)
    assert caught.value.details["end"]["reason"] == "released"
    with pytest.raises(LeaseEnded):
        async with process.attach():
            pass


async def test_no_byte_is_lost_or_comes_twice_over_lines_that_are_cut(
    client: AsyncSandboxd, sandbox: AsyncSandbox
) -> None:
    sent = _noise(700_000)
    process = await sandbox.start("cat", stdin_open=True)
    async with (
        open_cutting_proxy(
            client.url, after_bytes=lambda: _CHANCE.randrange(40_000, 250_000)
        ) as proxy,
        AsyncSandboxd(proxy.url) as cut_client,
    ):
        cut = cut_client.sandbox(sandbox.id).process(process.exec_id)
        async with cut.attach() as terminal, anyio.create_task_group() as tasks:

            async def type_all() -> None:
                start = 0
                while start < len(sent):
                    end = start + _CHANCE.randrange(1, 20_000)
                    await terminal.send(sent[start:end])
                    start = end
                await terminal.close_input()

            tasks.start_soon(type_all)
            got, result = await read_to_end(terminal)
        assert proxy.count > 5
    assert (len(got), result.exit_code) == (len(sent), 0)
    assert got == sent


async def test_more_input_than_may_be_in_flight_waits_for_the_command(
    sandbox: AsyncSandbox,
) -> None:
    sent = _noise(5 << 20)
    process = await sandbox.start("sleep 0.3; cat", stdin_open=True)
    async with process.attach() as terminal, anyio.create_task_group() as tasks:

        async def type_all() -> None:
            await terminal.send(sent)
            await terminal.close_input()

        tasks.start_soon(type_all)
        got, _ = await read_to_end(terminal)
    assert got == sent


def test_the_twin_types_in_one_thread_and_reads_in_another(sync_client: Sandboxd) -> None:
    sent = _noise(300_000)
    with sync_client.lease("python") as sandbox:
        process = sandbox.start("cat", stdin_open=True)
        with process.attach() as terminal:

            def type_all() -> None:
                terminal.send(sent)
                terminal.close_input()

            typist = threading.Thread(target=type_all)
            typist.start()
            events = list(terminal)
            typist.join(10)
    assert b"".join(event.data for event in events if isinstance(event, Stdout)) == sent
    assert isinstance(events[-1], Ended)
    assert events[-1].result.ok


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_terminal_lives_through_a_daemon_that_is_killed_and_started_again(
    tmp_path: Path,
) -> None:
    config = '[templates.python]\nimage = "host"\npool = {ready = 0, max = 4}\n'
    with service(tmp_path, config=config, port=free_port()) as running:
        async with AsyncSandboxd(running.url) as client:
            sandbox = await client.lease("python")
            process = await sandbox.start(["cat"], tty=(24, 80))
            async with process.attach() as terminal:
                await terminal.send("before\n")
                assert await read(terminal, 16) == b"before\r\nbefore\r\n"
                with anyio.fail_after(15):
                    await anyio.to_thread.run_sync(running.kill)
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(terminal.send, "after\n")
                        await anyio.to_thread.run_sync(running.start)
                        assert await read(terminal, 14) == b"after\r\nafter\r\n"
                await terminal.resize(40, 100)
                await terminal.signal("KILL")
                assert (await read_to_end(terminal))[1].outcome == "killed"


def test_input_is_let_go_once_it_is_confirmed() -> None:
    tail = InputTail(10)
    tail.add(b"abcdef")
    assert tail.piece_at(12, limit=3) == b"cde"
    tail.confirm(13)
    assert (tail.start, tail.end) == (13, 16)
    assert tail.piece_at(13, limit=100) == b"def"
    assert tail.piece_at(16, limit=100) is None
    tail.eof = True
    assert tail.piece_at(16, limit=100) == b""
    assert tail.piece_at(17, limit=100) is None
    tail.confirm(1000)  # somebody else has written too
    assert (tail.start, tail.end, tail.is_full) == (16, 16, False)


async def test_a_terminal_that_was_not_entered_says_how(daemon: RunningDaemon) -> None:
    async with AsyncSandboxd(daemon.url) as client:
        terminal = client.sandbox("sbx-x").process("x").attach()
        with pytest.raises(RuntimeError, match="async with"):
            await terminal.send("x")
