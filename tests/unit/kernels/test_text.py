"""Output as a person reads it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.kernels.text import collapse, plain


@pytest.mark.parametrize(
    ("printed", "read"),
    [
        ("a\nb", "a\nb"),
        ("\r1\r2\r3", "3"),
        ("100%\r7", "700%"),
        ("abc\r", "abc"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("long line\rshort\nnext\rN", "shortline\nNext"),
        ("\r\r\n", ""),
    ],
)
def test_what_was_overwritten_is_gone(printed: str, read: str) -> None:
    assert collapse(printed).rstrip("\n") == read.rstrip("\n")


@given(st.lists(st.text(alphabet="ab", max_size=6)))
def test_a_line_reads_as_a_terminal_shows_it(stretches: list[str]) -> None:
    screen: list[str] = []
    for stretch in stretches:
        screen[: len(stretch)] = stretch
    assert collapse("\r".join(stretches)) == "".join(screen)


def test_a_line_that_is_overwritten_ever_again_takes_no_longer_for_it() -> None:
    began = time.process_time()
    assert collapse("x" * 500_000 + "\ry" * 250_000) == "y" + "x" * 499_999
    assert time.process_time() - began < 1


def test_colours_are_none() -> None:
    assert plain("\x1b[0;31mZeroDivisionError\x1b[0m: \x1b]8;;http://x\x07link\x1b]8;;\x07") == (
        "ZeroDivisionError: link"
    )


@pytest.mark.parametrize("part", ["\x1b[", "\x1b]", "\x1b[0", "\x1b]8;", "\x1b"])
def test_sequences_without_an_end_take_no_longer_for_their_number(part: str) -> None:
    began = time.process_time()
    plain(part * 200_000)
    plain(part + "0" * 500_000)
    assert time.process_time() - began < 2


@given(st.text(), st.text())
def test_text_without_either_is_as_it_was(first: str, second: str) -> None:
    text = f"{first}\n{second}".replace("\r", "").replace("\x1b", "")
    assert plain(collapse(text)) == text
