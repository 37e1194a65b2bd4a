"""Output that is kept: head and tail, counted gaps, reads at offsets."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest
from sandboxd.wire.codes import ErrorCode
from tests.conformance.guest.steps import command, end_of, run, script, sh, start


@pytest.mark.parametrize("size", [0, 1, 999, 1000])
async def test_output_within_the_limit_is_kept_whole(guest: Guest, size: int) -> None:
    data = bytes(i % 251 for i in range(size))
    record = await run(guest, command("cat", stdin=data, output_limit_bytes=1000))
    kept = record.stdout
    assert (kept.head, kept.tail, kept.gap_bytes, kept.truncated) == (data, b"", 0, False)


@pytest.mark.requirement("ST-03")
@pytest.mark.parametrize("size", [1001, 5000, 300_000])
async def test_output_over_the_limit_keeps_head_and_tail_and_counts_the_rest(
    guest: Guest, size: int
) -> None:
    """ST-03."""
    data = bytes(97 + i % 26 for i in range(size))
    record = await run(guest, command("cat", stdin=data, output_limit_bytes=1000))
    kept = record.stdout
    assert record.exit_code == 0
    assert (kept.total_bytes, kept.truncated) == (size, True)
    assert len(kept.head) + len(kept.tail) <= 1000
    assert len(kept.head) >= 490
    assert len(kept.tail) >= 490
    assert data.startswith(kept.head)
    assert data.endswith(kept.tail)
    assert kept.gap_bytes == size - len(kept.head) - len(kept.tail)


@pytest.mark.requirement("ST-03")
async def test_only_the_stream_that_is_over_is_truncated(guest: Guest) -> None:
    """ST-03."""
    record = await sh(guest, "head -c 10000 /dev/zero >&2; echo ok", output_limit_bytes=1000)
    assert (record.stdout.truncated, record.stderr.truncated) == (False, True)
    assert record.stdout.head == b"ok\n"


@pytest.mark.requirement("ST-04")
async def test_long_line_is_whole_within_the_limit(guest: Guest) -> None:
    """ST-04."""
    record = await sh(guest, "head -c 10000000 /dev/zero", output_limit_bytes=16 << 20)
    assert (record.stdout.total_bytes, record.stdout.truncated) == (10_000_000, False)
    assert record.stdout.head == bytes(10_000_000)


@pytest.mark.requirement("ST-07")
async def test_last_bytes_before_the_end_are_not_lost(guest: Guest) -> None:
    """ST-07."""

    async def one() -> None:
        record = await sh(guest, "head -c 100003 /dev/zero")
        assert (record.exit_code, record.stdout.total_bytes) == (0, 100_003)
        assert len(record.stdout.head) == 100_003

    for _ in range(5):
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(one)


async def test_record_without_output_has_the_counts(guest: Guest) -> None:
    record = await sh(guest, "echo abc")
    with anyio.fail_after(5):
        bare = await guest.look_exec(record.exec_id, output=False)
    assert (bare.stdout.total_bytes, bare.stdout.head) == (4, b"")


async def test_output_is_read_in_steps_to_its_end(guest: Guest) -> None:
    record = await sh(guest, "seq 1000")
    data, offset, ended = b"", 0, False
    with anyio.fail_after(10):
        while not ended:
            piece = await guest.read_output(
                record.exec_id, stream="stdout", offset=offset, limit=1000, wait_s=0
            )
            data, offset, ended = data + piece.data, piece.next_offset, piece.ended
    assert data == b"".join(b"%d\n" % i for i in range(1, 1001))


async def test_reading_at_the_end_waits_for_more(guest: Guest) -> None:
    exec_id = await start(guest, script("cat", stdin_open=True))
    with anyio.fail_after(10):
        piece = await guest.read_output(exec_id, stream="stdout", offset=0, limit=10, wait_s=0.05)
        assert (piece.data, piece.next_offset, piece.ended) == (b"", 0, False)
        async with anyio.create_task_group() as group:
            group.start_soon(guest.write_stdin, exec_id, b"later")
            piece = await guest.read_output(exec_id, stream="stdout", offset=0, limit=10, wait_s=9)
        assert piece.data == b"later"
        await guest.write_stdin(exec_id, b"", eof=True)
        piece = await guest.read_output(exec_id, stream="stdout", offset=5, limit=10, wait_s=9)
        assert (piece.data, piece.ended) == (b"", True)
    await end_of(guest, exec_id)


async def test_bytes_that_are_not_kept_are_refused_with_what_is(guest: Guest) -> None:
    record = await sh(guest, "head -c 4000000 /dev/zero", output_limit_bytes=1000)
    with anyio.fail_after(5), pytest.raises(SandboxdError) as refused:
        await guest.read_output(record.exec_id, stream="stdout", offset=2_000_000, limit=10)
    assert (refused.value.code, refused.value.status) == (ErrorCode.BAD_REQUEST, 416)
    kept = refused.value.details["kept"]
    assert kept[0][0] == 0
    assert kept[-1][1] == 4_000_000
    with anyio.fail_after(5):
        piece = await guest.read_output(
            record.exec_id, stream="stdout", offset=kept[-1][0], limit=1 << 20
        )
    assert piece.next_offset == 4_000_000


async def test_offset_beyond_the_end_is_refused(guest: Guest) -> None:
    record = await sh(guest, "echo abc")
    with anyio.fail_after(5), pytest.raises(SandboxdError) as refused:
        await guest.read_output(record.exec_id, stream="stdout", offset=5, limit=10)
    assert refused.value.status == 416
