"""Whose doing it is that a guest cannot be reached."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from sandboxd.guest.proven import is_our_own


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
def test_what_the_daemon_runs_short_of_is_its_own(tmp_path: Path, number: int) -> None:
    assert is_our_own(OSError(number, "short"), tmp_path)


def test_a_shared_directory_that_is_gone_is_the_machines_doing(tmp_path: Path) -> None:
    assert is_our_own(FileNotFoundError(errno.ENOENT, "gone"), tmp_path / "gone")


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ECONNREFUSED, errno.ENOTSOCK, errno.ELOOP])
def test_a_socket_that_is_gone_or_another_is_somebodys_inside(tmp_path: Path, number: int) -> None:
    assert not is_our_own(OSError(number, "no guest"), tmp_path)
