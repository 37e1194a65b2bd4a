"""The line that is kept for the first caller of a box: given once, and only while it is good."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from sandboxd.backends.kubernetes.reaching.first_line import FirstLine
from sandboxd.guest.streams.unix_stream import UnixStream

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def test_it_is_given_to_the_first_who_asks_alone(ends: Ends) -> None:
    line, stream = FirstLine(), UnixStream(ends[0])
    line.put(stream)
    assert line.take() is stream
    assert line.take() is None


def test_one_whose_other_end_has_let_go_is_not_given(ends: Ends) -> None:
    line = FirstLine()
    line.put(UnixStream(ends[0]))
    ends[1].close()
    assert line.take() is None
    assert ends[0].fileno() == -1


def test_one_on_which_something_was_said_unasked_is_not_given(ends: Ends) -> None:
    line = FirstLine()
    line.put(UnixStream(ends[0]))
    ends[1].send(b"?")
    assert line.take() is None


def test_it_goes_with_its_box_whichever_is_first(ends: Ends) -> None:
    line = FirstLine()
    line.close()
    line.put(UnixStream(ends[0]))
    assert ends[0].fileno() == -1
    assert line.take() is None
