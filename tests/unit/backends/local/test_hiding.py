"""Which of the things to hide lie below something shown, and what is laid over them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd.backends.local import LocalSettings
from sandboxd.backends.local.launching.hiding import hidden_below, lay_over
from sandboxd.backends.local.opening import open_shelf
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode


def test_only_what_is_there_and_below_counts_and_the_outermost_is_enough(tmp_path: Path) -> None:
    top = tmp_path / "opt"
    (top / "daemon" / "state").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    wanted = [top / "daemon", top / "daemon/state", top / "missing", tmp_path / "elsewhere", top]
    assert hidden_below(top, wanted) == [top / "daemon"]


def test_what_a_link_leads_to_is_hidden_as_well_as_the_link(tmp_path: Path) -> None:
    top = tmp_path / "opt"
    (top / "real").mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(top / "real")
    assert hidden_below(top, [link]) == [top / "real"]


def test_a_closed_file_lies_in_the_place_of_a_directory(tmp_path: Path) -> None:
    top = tmp_path / "etc"
    (top / "a" / "keys").mkdir(parents=True)
    skeleton = lay_over(top, [top / "a/keys"], {"/hostname": (b"sandbox\n", 0o644)})
    assert skeleton is not None
    assert skeleton.files == {"/hostname": (b"sandbox\n", 0o644), "/a/keys": (b"", 0o600)}
    assert skeleton.directories == {"/": 0o755, "/a": 0o755}


def test_nothing_is_laid_over_where_nothing_is_hidden(tmp_path: Path) -> None:
    assert lay_over(tmp_path, [], {}) is None


@pytest.mark.parametrize("place", ["/opt/sandboxd/state", "/usr/local/var", "/opt/../etc/x"])
def test_a_state_directory_below_what_is_shown_is_refused_before_it_is_made(place: str) -> None:
    with pytest.raises(SandboxdError) as caught:
        open_shelf(LocalSettings(state_dir=Path(place), installation="test"))
    assert caught.value.code is ErrorCode.BACKEND_UNAVAILABLE
    assert "state_dir" in caught.value.detail
    assert not Path(place).exists()
