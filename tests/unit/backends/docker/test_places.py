"""Directories of boxes, and the guest's executable beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd.backends.docker.places import Places
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode


@pytest.fixture
def places(tmp_path: Path) -> Places:
    (tmp_path / "r").mkdir()
    opened = Places(run_dir=tmp_path / "r", home=tmp_path / "home")
    opened.open()
    return opened


def test_a_box_has_a_directory_of_its_own_that_is_nobody_elses(places: Places) -> None:
    path = places.create("box-1")
    assert path.stat().st_mode & 0o777 == 0o700
    assert places.list_ids() == ["box-1"]
    with pytest.raises(SandboxdError) as caught:
        places.create("box-1")
    assert caught.value.code is ErrorCode.CONFLICT
    (path / "left" / "behind").mkdir(parents=True)
    places.remove("box-1")
    places.remove("box-1")
    assert places.list_ids() == []


@pytest.mark.parametrize("box_id", ["../up", "", ".", "a/b", "x" * 80])
def test_an_id_that_is_no_plain_name_is_refused(places: Places, box_id: str) -> None:
    with pytest.raises(SandboxdError) as caught:
        places.create(box_id)
    assert caught.value.code is ErrorCode.BAD_REQUEST


def test_a_socket_too_deep_to_be_reached_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    with pytest.raises(SandboxdError) as caught:
        Places(run_dir=deep, home=tmp_path / "home").create("box-1")
    assert caught.value.code is ErrorCode.BACKEND_UNAVAILABLE
    assert list(deep.iterdir()) == []


def test_the_guest_is_copied_once_and_an_older_one_goes(places: Places, tmp_path: Path) -> None:
    binary = tmp_path / "guest"
    binary.write_bytes(b"one")
    first = places.bring_guest(binary)
    assert first == places.bring_guest(binary)
    assert first.stat().st_mode & 0o777 == 0o755
    binary.write_bytes(b"two")
    second = places.bring_guest(binary)
    assert second.read_bytes() == b"two"
    assert not first.exists()
