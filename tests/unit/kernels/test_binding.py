"""What a lease brings to a kernel that runs already: what it can be given, and how."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sandboxd.guest.kernels import Changes, Channel
from sandboxd.kernels.early import binding
from sandboxd.kernels.messages import Message


def changes(
    env: Mapping[str, str] | None = None, *, unset: str = "", cwd: str = "", anew: bool = False
) -> Changes:
    return Changes(env=env or {}, unset=tuple(unset.split()), cwd=cwd, anew=anew)


def reply(**content: Any) -> Message:
    return Message(channel=Channel.SHELL, seq=1, header={}, parent={}, metadata={}, content=content)


@pytest.mark.parametrize(
    "name",
    [
        "PYTHONPATH", "PYTHONHOME", "PYTHONHASHSEED", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH",
        "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
        "LC_ALL", "LANG", "HOME", "JUPYTER_PATH",
    ],
)  # fmt: skip
def test_a_variable_that_only_counts_at_the_start_is_not_given_to_a_kernel_that_runs(
    name: str,
) -> None:
    assert not binding.can_bind(changes({name: "x"}), language="python")
    assert not binding.can_bind(changes(unset=name), language="python")


def test_other_variables_and_a_directory_are_given_to_a_python_kernel_alone() -> None:
    for lacking in (changes({"A": "1", "TZ": "UTC"}), changes(unset="A"), changes(cwd="/x")):
        assert binding.can_bind(lacking, language="python")
        assert not binding.can_bind(lacking, language="bash")


def test_a_kernel_that_lacks_nothing_is_good_whatever_it_speaks() -> None:
    assert binding.can_bind(changes(), language="bash")
    assert binding.binding(changes()) == {}


def test_a_kernel_with_other_rights_is_good_for_nothing() -> None:
    assert not binding.can_bind(changes(anew=True), language="python")


def test_what_it_is_told_does_it_and_leaves_no_name_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GONE", "1")
    monkeypatch.setenv("OTHER", "1")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.chdir("/")
    place = tmp_path / 'it\'s a "place" \u00e9'
    place.mkdir()
    awkward = "quote ' and \" and \\ and \n and \u20ac"
    asked = changes({"OTHER": awkward, "TZ": "Asia/Tokyo"}, unset="GONE NEVER", cwd=str(place))
    names: dict[str, Any] = {}
    for expression in binding.binding(asked).values():
        assert eval(expression, {}, names) is None  # noqa: S307 - it is ours
    assert (os.environ["OTHER"], os.environ.get("GONE")) == (awkward, None)
    assert Path.cwd() == place
    assert time.localtime(0).tm_hour == 9
    assert names == {}
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def test_an_answer_counts_only_if_all_of_it_was_done() -> None:
    well = {"status": "ok", "data": {}}
    failed = {"status": "error", "ename": "FileNotFoundError", "evalue": "/x"}
    assert binding.failure(reply(status="ok", user_expressions={"a": well})) is None
    assert binding.failure(reply(implementation="old")) is None
    one = binding.failure(reply(status="ok", user_expressions={"a": well, "b": failed}))
    assert one == "FileNotFoundError: /x"
    assert binding.failure(reply(status="ok", user_expressions={"a": "nonsense"})) is not None
    assert binding.failure(reply(status="aborted")) is not None
