"""Directories as tar streams: equal on both sides, and never written outside the target."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxd_client import UnsafeArchive
from sandboxd_client._core.tarballs import ChunkReader, tar_pieces, unpack

Member = tuple[str, bytes | None, str]  # name, content (None for a link), link's target


def _tar(*members: Member, kind: bytes = tarfile.SYMTYPE) -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content, target in members:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = kind, target
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    file.seek(0)
    return file


def test_what_was_packed_is_unpacked_equal_in_small_pieces(tmp_path: Path) -> None:
    there = tmp_path / "there"
    (there / "a" / "b").mkdir(parents=True)
    (there / "a" / "b" / ("é" * 90)).write_bytes(b"x" * 3_000_001)
    (there / "a" / "empty").touch()
    (there / "a" / "up").symlink_to("../top")
    (there / "top").write_text("t")
    data = b"".join(tar_pieces(there))
    pieces = iter([data[i : i + 700] for i in range(0, len(data), 700)])
    assert unpack(ChunkReader(lambda: next(pieces, b"")), tmp_path / "back") == 3
    back = tmp_path / "back"
    assert (back / "a" / "b" / ("é" * 90)).stat().st_size == 3_000_001
    assert (back / "a" / "up").read_text() == "t"
    assert {p.relative_to(back) for p in back.rglob("*")} == {
        p.relative_to(there) for p in there.rglob("*")
    }


def test_pieces_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(9 << 20))
    assert max(len(piece) for piece in tar_pieces(tmp_path)) < 3 << 20


def test_a_tar_of_the_standard_library_reads_what_was_packed(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("hello")
    with tarfile.open(fileobj=io.BytesIO(b"".join(tar_pieces(tmp_path)))) as archive:
        assert archive.getnames() == ["f"]
        assert archive.extractfile("f").read() == b"hello"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "make",
    [
        lambda: _tar(("../evil", b"x", "")),
        lambda: _tar(("/evil", b"x", "")),
        lambda: _tar(("a/../../evil", b"x", "")),
        lambda: _tar(("l", None, "/etc")),
        lambda: _tar(("l", None, "..")),
        lambda: _tar(("d/l", None, "../../evil")),
        lambda: _tar(("d/here", None, "."), ("d/l", None, "here/../../evil")),
        lambda: _tar(("h", None, "/etc/passwd"), kind=tarfile.LNKTYPE),
        lambda: _tar(("h", None, "f"), kind=tarfile.LNKTYPE),
    ],
)
def test_members_and_links_that_leave_are_refused(
    tmp_path: Path, make: Callable[[], io.BytesIO]
) -> None:
    with pytest.raises(UnsafeArchive):
        unpack(make(), tmp_path / "in")
    assert not (tmp_path / "evil").exists()


@pytest.mark.requirement("FI-02")
def test_nothing_is_written_through_a_link_that_lay_there(tmp_path: Path) -> None:
    """FI-02: neither through a link of an earlier download nor through one of this archive."""
    outside, target = tmp_path / "outside", tmp_path / "in"
    outside.mkdir()
    target.mkdir()
    (target / "d").symlink_to(outside)
    (target / "f").symlink_to(outside / "f")
    unpack(_tar(("d/x", b"1", ""), ("f", b"2", "")), target)
    assert list(outside.iterdir()) == []
    assert ((target / "d" / "x").read_bytes(), (target / "f").read_bytes()) == (b"1", b"2")


def test_devices_are_left_out_and_set_uid_bits_taken_off(tmp_path: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        device = tarfile.TarInfo("null")
        device.type, device.devmajor, device.devminor = tarfile.CHRTYPE, 1, 3
        archive.addfile(device)
        tool = tarfile.TarInfo("tool")
        tool.mode = 0o6755
        archive.addfile(tool)
    file.seek(0)
    unpack(file, tmp_path / "in")
    assert [p.name for p in (tmp_path / "in").iterdir()] == ["tool"]
    assert (tmp_path / "in" / "tool").stat().st_mode & 0o7777 == 0o755


def test_a_cut_archive_is_an_error(tmp_path: Path) -> None:
    data = _tar(("f", b"x" * 5000, "")).getvalue()[:3000]
    with pytest.raises(tarfile.TarError):
        unpack(io.BytesIO(data), tmp_path / "in")
