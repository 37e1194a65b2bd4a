"""Live output: in order, exact, resumable, and held back for who reads slowly."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.guest import Ended, Gap, Guest, OutputEvent, Piece, Started
from sandboxd.wire.codes import ErrorCode, Outcome
from tests.conformance.guest.steps import (
    command,
    end_of,
    joined,
    replay,
    run,
    script,
    sh,
    start,
    the_end,
)


@pytest.mark.requirement("EX-01")
async def test_stream_begins_with_started_and_ends_once_with_the_record(guest: Guest) -> None:
    """EX-01."""
    record = await sh(guest, "echo out; echo err >&2; exit 7")
    events = await replay(guest, record.exec_id)
    assert isinstance(events[0], Started)
    assert (joined(events), joined(events, "stderr")) == (b"out\n", b"err\n")
    ended = the_end(events)
    assert (ended.outcome, ended.exit_code, ended.stdout.total_bytes) == (Outcome.EXITED, 7, 4)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))


@pytest.mark.requirement("ST-05")
async def test_output_comes_while_the_command_runs(guest: Guest) -> None:
    """ST-05."""
    exec_id = await start(guest, script("echo first; cat; echo last", stdin_open=True))
    with anyio.fail_after(10):
        async with guest.attach(exec_id) as attachment:
            assert isinstance(await anext(attachment), Started)
            first = await anext(attachment)
            assert isinstance(first, Piece)
            assert (first.stream, first.offset, first.data) == ("stdout", 0, b"first\n")
            assert (await guest.look_exec(exec_id)).outcome is None
            await attachment.send_stdin(b"middle\n")
            await attachment.close_stdin()
            rest = [event async for event in attachment]
    assert joined([first, *rest]) == b"first\nmiddle\nlast\n"


async def test_signal_through_an_attachment_ends_the_command(guest: Guest) -> None:
    exec_id = await start(guest, command("sleep", "100"))
    with anyio.fail_after(10):
        async with guest.attach(exec_id) as attachment:
            await attachment.send_signal("INT")
            events = [event async for event in attachment]
    assert (the_end(events).outcome, the_end(events).signal) == (Outcome.KILLED, "INT")


@pytest.mark.requirement("ST-10")
async def test_resuming_after_any_piece_gives_exactly_the_rest(guest: Guest) -> None:
    """ST-10."""
    record = await sh(guest, "; ".join(f"echo o{i}; echo e{i} >&2; sleep 0.02" for i in range(6)))
    events = await replay(guest, record.exec_id)
    assert joined(events) == b"".join(b"o%d\n" % i for i in range(6))
    for seen, event in enumerate(events):
        again = await replay(guest, record.exec_id, after=event.seq)
        if not isinstance(event, Ended):
            assert again == events[seen + 1 :]


async def test_resuming_at_offsets_gives_the_bytes_from_there(guest: Guest) -> None:
    record = await sh(guest, "printf 0123456789; printf abcdef >&2")
    events = await replay(guest, record.exec_id, offsets=(4, 2))
    assert (joined(events), joined(events, "stderr")) == (b"456789", b"cdef")
    pieces = [event for event in events if isinstance(event, Piece)]
    assert {(piece.stream, piece.offset) for piece in pieces} == {("stdout", 4), ("stderr", 2)}


@pytest.mark.requirement("ST-10")
async def test_line_that_is_cut_is_resumed_without_loss_or_repeat(guest: Guest) -> None:
    """ST-10."""
    text = "; ".join(f"echo line{i}; sleep 0.05" for i in range(10))
    exec_id = await start(guest, script(text))
    seen: list[OutputEvent] = []
    last = 0
    with anyio.fail_after(15):
        while not seen or not isinstance(seen[-1], Ended):
            async with guest.attach(exec_id, after=last) as attachment:
                async for event in attachment:
                    seen.append(event)
                    last = event.seq
                    if isinstance(event, Piece):
                        break
    assert joined(seen) == b"".join(b"line%d\n" % i for i in range(10))


async def test_several_may_follow_one_command(guest: Guest) -> None:
    exec_id = await start(guest, script("cat", stdin_open=True))
    found: list[bytes] = []

    async def follow() -> None:
        found.append(joined(await replay(guest, exec_id)))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(follow)
            await guest.write_stdin(exec_id, b"shared", eof=True)
    assert found == [b"shared"] * 3


@pytest.mark.requirement("ST-01")
@pytest.mark.parametrize("shift", [0, 1, 2])
async def test_pieces_of_text_are_cut_at_characters(guest: Guest, shift: int) -> None:
    """ST-01."""
    text = ("a" * shift + "€" * 100_000).encode()
    record = await run(guest, command("cat", stdin=text))
    events = await replay(guest, record.exec_id)
    assert joined(events) == text
    for event in events:
        if isinstance(event, Piece):
            event.data.decode()


async def test_character_that_never_gets_whole_is_told_at_the_end(guest: Guest) -> None:
    record = await run(guest, command("cat", stdin=b"x" + "€".encode()[:2]))
    assert joined(await replay(guest, record.exec_id)) == b"x" + "€".encode()[:2]
    assert record.stdout.head == b"x" + "€".encode()[:2]


@pytest.mark.requirement("ST-02")
async def test_bytes_of_every_value_arrive_unchanged(guest: Guest) -> None:
    """ST-02."""
    data = bytes(range(256)) * 1024
    record = await run(guest, command("cat", stdin=data))
    assert record.stdout.head == data
    assert joined(await replay(guest, record.exec_id)) == data


async def test_reader_gets_all_of_an_output_that_is_far_over_the_cap(guest: Guest) -> None:
    exec_id = await start(
        guest,
        script(
            "cat > /dev/null; head -c 5000000 /dev/zero", stdin_open=True, output_limit_bytes=1000
        ),
    )
    with anyio.fail_after(15):
        async with guest.attach(exec_id) as attachment:
            assert isinstance(await anext(attachment), Started)
            await attachment.close_stdin()
            events = [event async for event in attachment]
    assert not [event for event in events if isinstance(event, Gap)]
    assert len(joined(events)) == 5_000_000
    assert the_end(events).stdout.total_bytes == 5_000_000


async def test_late_reader_is_told_of_the_gap(guest: Guest) -> None:
    record = await sh(guest, "head -c 1000000 /dev/zero; echo end", output_limit_bytes=2000)
    events = await replay(guest, record.exec_id)
    gaps = [event for event in events if isinstance(event, Gap)]
    assert len(gaps) == 1
    assert len(joined(events)) + gaps[0].size == 1_000_004
    assert joined(events).endswith(b"\0end\n")
    assert gaps[0].offset >= 1000


async def test_reader_that_leaves_does_not_end_the_command(guest: Guest) -> None:
    exec_id = await start(guest, script("echo a; cat; exit 4", stdin_open=True))
    with anyio.fail_after(10):
        async with guest.attach(exec_id) as attachment:
            await anext(attachment)
        await guest.write_stdin(exec_id, b"", eof=True)
    assert (await end_of(guest, exec_id)).exit_code == 4


async def test_reader_that_stops_reading_then_leaves_frees_the_pipe(guest: Guest) -> None:
    exec_id = await start(
        guest, script("cat > /dev/null; head -c 8000000 /dev/zero", stdin_open=True)
    )
    with anyio.fail_after(15):
        async with guest.attach(exec_id) as attachment:
            await attachment.close_stdin()
            await anext(attachment)
            await anext(attachment)
    assert (await end_of(guest, exec_id)).stdout.total_bytes == 8_000_000


async def test_attaching_to_an_unknown_command_is_not_found(guest: Guest) -> None:
    with anyio.fail_after(5), pytest.raises(SandboxdError) as refused:
        async with guest.attach("never"):
            pass
    assert refused.value.code is ErrorCode.NOT_FOUND
