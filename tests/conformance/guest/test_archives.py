"""Archives: trees in and out, and nothing outside the target."""

from __future__ import annotations

import gzip
import io
import tarfile

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest
from sandboxd.wire.codes import ErrorCode
from tests.conformance.guest.steps import seeded, sh


def member(name: str, data: bytes = b"", **options: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    for field, value in options.items():
        setattr(info, field, value)
    return info, data


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


async def packed(guest: Guest, path: str) -> dict[str, bytes | None]:
    with anyio.fail_after(15):
        async with guest.files.pack(path) as pieces:
            data = b"".join([piece async for piece in pieces])
    found: dict[str, bytes | None] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for info in archive:
            source = archive.extractfile(info) if info.isreg() else None
            found[info.name.rstrip("/")] = source.read() if source is not None else None
    return {name: data for name, data in found.items() if name not in {"", "."}}


@pytest.mark.parametrize("zipped", [False, True])
async def test_tree_goes_in_and_comes_out_as_it_was(guest: Guest, *, zipped: bool) -> None:
    big = seeded(1 << 20)
    body = tar(
        member("sub", type=tarfile.DIRTYPE, mode=0o755),
        member("sub/big", big),
        member("run", b"#!/bin/sh\n", mode=0o755),
        member("soft", type=tarfile.SYMTYPE, linkname="sub/big"),
    )
    with anyio.fail_after(15):
        told = await guest.files.unpack("in", gzip.compress(body) if zipped else body, gzip=zipped)
        assert told.bytes == len(big) + 10
        assert (await guest.files.stat("in/run")).mode == 0o755
        assert (await guest.files.stat("in/soft", follow=False)).target == "sub/big"
    found = {name.removeprefix("./"): data for name, data in (await packed(guest, "in")).items()}
    assert found == {"sub": None, "sub/big": big, "run": b"#!/bin/sh\n", "soft": None}


@pytest.mark.parametrize(
    "evil",
    [
        [member("../escaped", b"x")],
        [member("/workspace/escaped", b"x")],
        [member("a/../../escaped", b"x")],
        [member("l", type=tarfile.SYMTYPE, linkname="/etc"), member("l/x", b"x")],
        [member("l", type=tarfile.SYMTYPE, linkname="../.."), member("l/x", b"x")],
        [member("h", type=tarfile.LNKTYPE, linkname="../../etc/hostname")],
        [member("dev", type=tarfile.CHRTYPE)],
    ],
    ids=["up", "absolute", "through", "link out", "link up", "hard link out", "device"],
)
async def test_what_leaves_the_target_is_refused(
    guest: Guest, evil: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    with anyio.fail_after(10), pytest.raises(SandboxdError) as refused:
        await guest.files.unpack("target", tar(*evil))
    assert refused.value.code is ErrorCode.BAD_REQUEST
    assert (await sh(guest, "test -e /workspace/escaped")).exit_code == 1
    assert (await sh(guest, "test -e /etc/x")).exit_code == 1


async def test_link_that_stood_there_before_is_no_way_out(guest: Guest) -> None:
    await guest.files.mkdir("target")
    await sh(guest, "mkdir /workspace/outside; ln -s /workspace/outside target/door")
    with anyio.fail_after(10), pytest.raises(SandboxdError) as refused:
        await guest.files.unpack("target", tar(member("door/x", b"x")))
    assert refused.value.code is ErrorCode.BAD_REQUEST
    assert (await sh(guest, "test -e outside/x")).exit_code == 1


@pytest.mark.parametrize("zipped", [False, True])
async def test_what_is_no_archive_is_refused(guest: Guest, *, zipped: bool) -> None:
    with anyio.fail_after(10), pytest.raises(SandboxdError) as refused:
        await guest.files.unpack("target", b"this is no archive at all" * 100, gzip=zipped)
    assert refused.value.code is ErrorCode.BAD_REQUEST


async def test_packing_what_is_not_there_is_refused(guest: Guest) -> None:
    with anyio.fail_after(5), pytest.raises(SandboxdError) as refused:
        await packed(guest, "missing")
    assert refused.value.code is ErrorCode.FILE_NOT_FOUND
