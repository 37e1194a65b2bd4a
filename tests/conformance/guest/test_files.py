"""Files: exact bytes, typed errors, odd names, links that stay inside."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest
from sandboxd.model.files import FileInfo, FileType
from sandboxd.wire.codes import ErrorCode
from tests.conformance.guest.steps import seeded, sh, until

_ODD_NAMES = [
    "a\nb", "-rf", "'", '"', "$(touch PWN)", ";id", "*", "a b ", "~", "\u00e9", "e\u0301", "😀",
    "a%2fb", "a?b=c&d", "a#b", "a+b", "back\\slash",
]  # fmt: skip


async def read(
    guest: Guest, path: str | bytes, *, offset: int = 0, limit: int | None = None
) -> bytes:
    with anyio.fail_after(15):
        async with guest.files.read(path, offset=offset, limit=limit) as body:
            data = b"".join([piece async for piece in body.chunks()])
            assert len(data) == body.size
            return data


async def names(guest: Guest, path: str, *, recursive: bool = False) -> list[str]:
    with anyio.fail_after(15):
        return sorted([f.path async for f in guest.files.list(path, recursive=recursive)])


async def refusal(guest: Guest, path: str) -> ErrorCode:
    with pytest.raises(SandboxdError) as refused:
        await read(guest, path)
    return refused.value.code


@pytest.mark.requirement("FI-05")
@pytest.mark.parametrize("size", [0, 1, 98_304, 131_071, 131_072, 131_073, 3 << 20])
async def test_written_bytes_are_read_back_at_every_size(guest: Guest, size: int) -> None:
    """FI-05."""
    data = seeded(size)
    with anyio.fail_after(15):
        info, new = await guest.files.write("deep/er/f.bin", data)
    assert (info.size, info.type, new) == (size, FileType.FILE, True)
    assert await read(guest, "deep/er/f.bin") == data
    assert (await sh(guest, "wc -c < deep/er/f.bin")).stdout.head.split() == [b"%d" % size]


@pytest.mark.parametrize("known", [True, False])
async def test_streamed_body_is_written_whole(guest: Guest, *, known: bool) -> None:
    data = seeded(1 << 20)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 100_000):
            yield data[start : start + 100_000]

    with anyio.fail_after(15):
        await guest.files.write("f", pieces(), size=len(data) if known else None)
    assert await read(guest, "f") == data


async def test_part_of_a_file_is_read_by_offset_and_limit(guest: Guest) -> None:
    await guest.files.write("f", b"0123456789")
    assert await read(guest, "f", offset=3) == b"3456789"
    assert await read(guest, "f", offset=3, limit=4) == b"3456"
    assert await read(guest, "f", offset=3, limit=0) == b""
    assert await read(guest, "f", offset=10) == b""
    async with guest.files.read("f", offset=8) as body:
        assert (body.size, body.total_size) == (2, 10)


@pytest.mark.requirement("FI-05")
async def test_mode_is_kept_and_replacing_says_so(guest: Guest) -> None:
    """FI-05."""
    info, new = await guest.files.write("run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
    assert (info.mode, new) == (0o755, True)
    assert (await sh(guest, "./run.sh")).stdout.head == b"ran\n"
    info, new = await guest.files.write("run.sh", b"#!/bin/sh\necho again\n")
    assert (info.mode, new) == (0o755, False)


async def test_interrupted_body_leaves_the_old_file_and_nothing_else(guest: Guest) -> None:
    await guest.files.write("dir/f", b"old")

    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise RuntimeError("the caller broke")

    with anyio.fail_after(10), pytest.raises(RuntimeError, match="the caller broke"):
        await guest.files.write("dir/f", broken(), size=1000)
    assert await read(guest, "dir/f") == b"old"

    async def only_the_file_is_there() -> bool:
        return await names(guest, "dir") == ["/workspace/dir/f"]

    await until(only_the_file_is_there)


@pytest.mark.requirement("FI-03")
async def test_each_way_of_not_reading_a_file_has_its_own_code(guest: Guest) -> None:
    """FI-03."""
    await guest.files.write("plain", b"x")
    await guest.files.mkdir("dir")
    assert await refusal(guest, "missing") is ErrorCode.FILE_NOT_FOUND
    assert await refusal(guest, "missing/child") is ErrorCode.FILE_NOT_FOUND
    assert await refusal(guest, "dir") is ErrorCode.FILE_IS_DIRECTORY
    assert await refusal(guest, "plain/child") is ErrorCode.FILE_NOT_DIRECTORY
    assert await refusal(guest, "n" * 5000) is ErrorCode.NAME_TOO_LONG
    assert await refusal(guest, "n" * 300) is ErrorCode.NAME_TOO_LONG
    assert await refusal(guest, "") is ErrorCode.BAD_REQUEST
    assert await refusal(guest, "a\0b") is ErrorCode.BAD_REQUEST


async def test_writing_over_a_directory_or_through_a_file_is_refused(guest: Guest) -> None:
    await guest.files.write("plain", b"x")
    await guest.files.mkdir("dir")
    for path, code in [
        ("dir", ErrorCode.FILE_IS_DIRECTORY),
        ("plain/child", ErrorCode.FILE_NOT_DIRECTORY),
    ]:
        with anyio.fail_after(10), pytest.raises(SandboxdError) as refused:
            await guest.files.write(path, bytes(1 << 20))
        assert refused.value.code is code
    assert await read(guest, "plain") == b"x"


@pytest.mark.requirement("FI-08")
@pytest.mark.parametrize("name", _ODD_NAMES)
async def test_odd_name_round_trips_exactly(guest: Guest, name: str) -> None:
    """FI-08."""
    path, moved = f"odd/{name}", f"odd/{name}.moved"
    info, _ = await guest.files.write(path, b"x")
    assert (info.name, info.path) == (name, f"/workspace/{path}")
    assert await names(guest, "odd") == [f"/workspace/{path}"]
    assert (await guest.files.stat(path)).size == 1
    assert await read(guest, path) == b"x"
    await guest.files.move(path, moved)
    assert await names(guest, "odd") == [f"/workspace/{moved}"]
    await guest.files.delete(moved)
    assert await names(guest, "odd") == []
    assert (await sh(guest, "test -e PWN")).exit_code == 1


async def test_name_that_is_not_utf8_is_reached_by_its_bytes(guest: Guest) -> None:
    info, _ = await guest.files.write(b"raw/\xff\xfe", b"x")
    assert info.name_b64 == "//4="
    assert await read(guest, b"/workspace/raw/\xff\xfe") == b"x"
    listed = [entry async for entry in guest.files.list("raw")]
    assert [entry.name_b64 for entry in listed] == ["//4="]


@pytest.mark.requirement("FI-02")
async def test_links_are_followed_inside_and_told_as_links(guest: Guest) -> None:
    """FI-02."""
    await guest.files.write("real", b"x")
    await sh(guest, "ln -s real soft; ln -s / root; ln -s loop loop; ln -s nowhere dangling")
    assert await read(guest, "soft") == b"x"
    assert await read(guest, "root/workspace/real") == b"x"
    link = await guest.files.stat("soft", follow=False)
    assert (link.type, link.target) == (FileType.LINK, "real")
    assert (await guest.files.stat("soft")).type is FileType.FILE
    assert await refusal(guest, "dangling") is ErrorCode.FILE_NOT_FOUND
    assert await refusal(guest, "loop") in {ErrorCode.FILE_NOT_FOUND, ErrorCode.BAD_REQUEST}


async def test_listing_is_flat_or_whole_and_does_not_follow_links(guest: Guest) -> None:
    await guest.files.write("d/a", b"1")
    await guest.files.write("d/sub/b", b"2")
    await sh(guest, "ln -s / d/away")
    base = "/workspace/d"
    assert await names(guest, "d") == [f"{base}/a", f"{base}/away", f"{base}/sub"]
    whole = [f"{base}/a", f"{base}/away", f"{base}/sub", f"{base}/sub/b"]
    assert await names(guest, "d", recursive=True) == whole
    for path, code in [
        ("none", ErrorCode.FILE_NOT_FOUND),
        ("d/a", ErrorCode.FILE_NOT_DIRECTORY),
    ]:
        with pytest.raises(SandboxdError) as refused:
            await names(guest, path)
        assert refused.value.code is code


@pytest.mark.requirement("FI-12")
async def test_directory_of_thousands_is_listed_completely(guest: Guest) -> None:
    """FI-12."""
    with anyio.fail_after(18):
        for start in range(0, 1000, 50):
            async with anyio.create_task_group() as group:
                for number in range(start, start + 50):
                    group.start_soon(guest.files.write, f"many/{number:04}", b"")
        assert await names(guest, "many") == [f"/workspace/many/{n:04}" for n in range(1000)]


async def test_list_left_early_leaves_the_guest_usable(guest: Guest) -> None:
    for name in "abc":
        await guest.files.write(f"l/{name}", b"")
    listing = guest.files.list("l")
    first = await anext(listing)
    await listing.aclose()
    assert isinstance(first, FileInfo)
    assert len(await names(guest, "l")) == 3


async def test_read_left_early_leaves_the_guest_usable(guest: Guest) -> None:
    await guest.files.write("big", bytes(4 << 20))
    with anyio.fail_after(10):
        async with guest.files.read("big") as body:
            assert await anext(body.chunks())
        assert (await guest.files.stat("big")).size == 4 << 20


async def test_deleting_takes_files_links_and_whole_trees(guest: Guest) -> None:
    await guest.files.write("t/sub/f", b"x")
    await sh(guest, "ln -s sub t/link")
    await guest.files.delete("t/link")
    assert await names(guest, "t", recursive=True) == ["/workspace/t/sub", "/workspace/t/sub/f"]
    with pytest.raises(SandboxdError) as refused:
        await guest.files.delete("t")
    assert refused.value.code is ErrorCode.FILE_IS_DIRECTORY
    await guest.files.delete("t", recursive=True)
    with pytest.raises(SandboxdError) as missing:
        await guest.files.delete("t", recursive=True)
    assert missing.value.code is ErrorCode.FILE_NOT_FOUND


@pytest.mark.parametrize("limit", [1, 3, 100])
async def test_pages_of_a_tree_are_in_one_order_and_go_on_behind_each_entry(
    guest: Guest, limit: int
) -> None:
    wanted = ["b", "b/a", "b/a/z", "b-c", "bb", "c"]
    for path in ("b/a/z", "b-c", "bb", "c"):
        await guest.files.write(f"tree/{path}", b"x")
    found: list[str] = []
    after = b""
    while True:
        listing = guest.files.list_page("tree", limit=limit, after=after, recursive=True)
        page = [info async for info in listing]
        if not page:
            break
        assert len(page) <= limit
        after = page[-1].after or b""
        found += [info.path.removeprefix("/workspace/tree/") for info in page]
    assert found == wanted
    flat = [info.name async for info in guest.files.list_page("tree", limit=9, after=b"b-c")]
    assert flat == ["bb", "c"]
    # A page goes on though the entry that it begins behind is gone.
    await guest.files.delete("tree/b-c")
    gone = [info.name async for info in guest.files.list_page("tree", limit=9, after=b"b-c")]
    assert gone == flat


async def test_directories_are_made_with_or_without_parents(guest: Guest) -> None:
    info = await guest.files.mkdir("x/y", mode=0o750)
    assert (info.type, info.mode) == (FileType.DIRECTORY, 0o750)
    assert (await guest.files.mkdir("x/y")).type is FileType.DIRECTORY
    for path, code in [("x", ErrorCode.FILE_EXISTS), ("no/such", ErrorCode.FILE_NOT_FOUND)]:
        with pytest.raises(SandboxdError) as refused:
            await guest.files.mkdir(path, parents=False)
        assert refused.value.code is code


async def test_moving_replaces_only_if_it_may(guest: Guest) -> None:
    await guest.files.write("a", b"a")
    await guest.files.write("b", b"b")
    with pytest.raises(SandboxdError) as refused:
        await guest.files.move("a", "b", overwrite=False)
    assert refused.value.code is ErrorCode.FILE_EXISTS
    assert (await guest.files.move("a", "b")).path == "/workspace/b"
    assert await read(guest, "b") == b"a"
    assert await refusal(guest, "a") is ErrorCode.FILE_NOT_FOUND
