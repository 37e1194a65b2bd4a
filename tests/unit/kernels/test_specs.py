"""Kernelspecs: read as Jupyter reads them, from files that anybody may have written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.kernels.specs import folders, python_spec, read_spec

FOLDER = "/usr/share/jupyter/kernels/x"


def test_a_kernelspec_is_read_with_its_places_filled_in() -> None:
    said = {
        "argv": ["{prefix}/bin/x", "{resource_dir}/start", "{connection_file}"],
        "display_name": "X", "language": "x", "env": {"A": "1", "B": 2},
        "interrupt_mode": "message", "metadata": {"debugger": True},
    }  # fmt: skip
    spec = read_spec("x", said, folder=FOLDER)
    assert spec.argv == ("/usr/bin/x", f"{FOLDER}/start", "{connection_file}")
    assert (spec.display_name, spec.language, spec.env) == ("X", "x", {"A": "1"})
    assert (spec.interrupted_by_message, spec.metadata) == (True, {"debugger": True})
    plain = read_spec("x", {"argv": ["x"]}, folder=FOLDER)
    assert (plain.display_name, plain.interrupted_by_message) == ("x", False)


@pytest.mark.parametrize(
    "said",
    [None, [], "x", {}, {"argv": []}, {"argv": "x"}, {"argv": [1]}, {"argv": ["a\0b"]},
     {"argv": ["x"] * 65}, {"argv": {"a": 1}}],
)  # fmt: skip
def test_what_is_none_is_told_as_that(said: Any) -> None:
    with pytest.raises(ValueError, match=r"no object|no argv|no text"):
        read_spec("x", said, folder=FOLDER)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=5,
)
FIELDS = st.sampled_from(
    ["argv", "env", "metadata", "display_name", "language", "interrupt_mode", "x"]
)


@given(st.dictionaries(FIELDS, ANYTHING) | ANYTHING)
def test_whatever_the_file_says_it_is_a_kernelspec_or_none(said: Any) -> None:
    try:
        spec = read_spec("x", said, folder=FOLDER)
    except ValueError:
        return
    assert spec.argv
    assert all("\0" not in word for word in spec.argv)
    assert {type(text) for text in [*spec.argv, *spec.env.values()]} == {str}


def test_variables_that_no_program_can_be_given_are_left_out() -> None:
    env = {"A": "1", "": "x", "B=": "x", "C\0": "x", "D": "\0", "E": ["x"], "F": ""}
    assert read_spec("x", {"argv": ["x"], "env": env}, folder=FOLDER).env == {"A": "1", "F": ""}


def test_places_are_looked_at_in_jupyters_order_and_each_once() -> None:
    env = {"JUPYTER_PATH": "/mine:relative:/other", "PATH": "/venv/bin:/usr/bin:/sbin:bin"}
    assert folders(env, home="/home/u") == [
        "/mine/kernels", "/other/kernels", "/home/u/.local/share/jupyter/kernels",
        "/venv/share/jupyter/kernels", "/usr/share/jupyter/kernels",
        "/usr/local/share/jupyter/kernels",
    ]  # fmt: skip
    assert folders({"JUPYTER_DATA_DIR": "/data"}, home="/h")[0] == "/data/kernels"
    assert "/usr/local/share/jupyter/kernels" in folders({}, home="/root")


def test_the_default_kernel_needs_no_file() -> None:
    assert python_spec("python3").argv[:3] == ("python3", "-m", "ipykernel_launcher")
