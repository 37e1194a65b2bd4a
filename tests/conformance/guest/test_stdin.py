"""Input of commands: whole, in order, once."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest
from sandboxd.wire.codes import ErrorCode
from tests.conformance.guest.steps import command, end_of, run, seeded, start


@pytest.mark.requirement("EX-06")
@pytest.mark.parametrize("size", [1, 65536, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
async def test_input_given_with_the_command_arrives_whole(guest: Guest, size: int) -> None:
    """EX-06."""
    data = seeded(size)
    record = await run(guest, command("sha256sum", stdin=data))
    assert record.stdout.head.split()[0].decode() == hashlib.sha256(data).hexdigest()


@pytest.mark.requirement("EX-06")
async def test_streamed_input_larger_than_any_buffer_arrives_whole(guest: Guest) -> None:
    """EX-06."""
    piece = seeded(1 << 18)
    digest = hashlib.sha256()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(48):
            digest.update(piece)
            yield piece

    exec_id = await start(guest, command("sha256sum", stdin_open=True))
    with anyio.fail_after(15):
        assert await guest.write_stdin(exec_id, pieces(), offset=0, eof=True) == 48 << 18
    record = await end_of(guest, exec_id)
    assert record.stdout.head.split()[0].decode() == digest.hexdigest()


async def test_bytes_already_taken_are_skipped(guest: Guest) -> None:
    exec_id = await start(guest, command("cat", stdin_open=True))
    with anyio.fail_after(10):
        assert await guest.write_stdin(exec_id, b"hello ", offset=0) == 6
        assert await guest.write_stdin(exec_id, b"hello world", offset=0) == 11
        assert await guest.write_stdin(exec_id, b"world", offset=6) == 11
        assert await guest.write_stdin(exec_id, b"!", eof=True) == 12
    assert (await end_of(guest, exec_id)).stdout.head == b"hello world!"


async def test_gap_in_the_input_is_a_conflict_and_nothing_is_taken(guest: Guest) -> None:
    exec_id = await start(guest, command("cat", stdin_open=True))
    with anyio.fail_after(10):
        with pytest.raises(SandboxdError) as refused:
            await guest.write_stdin(exec_id, b"x", offset=5)
        assert refused.value.code is ErrorCode.CONFLICT
        assert refused.value.status == 409
        await guest.write_stdin(exec_id, b"", offset=0, eof=True)
    assert (await end_of(guest, exec_id)).stdout.total_bytes == 0


async def test_input_after_the_process_closed_its_end_is_gone(guest: Guest) -> None:
    exec_id = await start(guest, command("true", stdin_open=True))
    await end_of(guest, exec_id)
    with anyio.fail_after(10), pytest.raises(SandboxdError) as refused:
        await guest.write_stdin(exec_id, b"x")
    assert (refused.value.code, refused.value.status) == (ErrorCode.CONFLICT, 410)


async def test_writer_that_waits_for_room_is_told_when_the_process_ends(guest: Guest) -> None:
    exec_id = await start(guest, command("sleep", "0.3", stdin_open=True))
    with anyio.fail_after(10), pytest.raises(SandboxdError) as refused:
        await guest.write_stdin(exec_id, bytes(4 << 20))
    assert refused.value.status == 410


async def test_input_through_an_attachment_reaches_the_command(guest: Guest) -> None:
    exec_id = await start(guest, command("sha256sum", stdin_open=True))
    data = seeded(3 << 20)
    with anyio.fail_after(15):
        async with guest.attach(exec_id) as attachment:
            await attachment.send_stdin(data)
            await attachment.close_stdin()
    record = await end_of(guest, exec_id)
    assert record.stdout.head.split()[0].decode() == hashlib.sha256(data).hexdigest()
