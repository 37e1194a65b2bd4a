"""ConnectRPC's and protobuf's forms, as far as they are spoken."""

from __future__ import annotations

from typing import Any

import pytest

from sandboxd.compat.connect.envelopes import Envelopes, envelope, last
from sandboxd.compat.connect.faults import Fault, fault_of
from sandboxd.compat.connect.protobuf import Fields, blob, sint, uint
from sandboxd.compat.prime import messages
from sandboxd.compat.prime.messages import Selector
from sandboxd.errors import SandboxdError
from sandboxd.model.command import TerminalSize
from sandboxd.wire.codes import ErrorCode


def test_a_start_says_what_to_run() -> None:
    command = blob(1, "/bin/bash") + blob(2, "-c") + blob(2, "echo é") + blob(4, "/tmp")
    command += blob(3, blob(1, "A") + blob(2, "1"))
    size = blob(1, uint(1, 100) + uint(2, 40))
    asked = messages.read_start(blob(1, command) + blob(2, size) + uint(4, 1) + blob(5, "s-1"))
    assert asked.argv == ("/bin/bash", "-c", "echo é")
    assert (asked.env, asked.cwd, asked.user) == ({"A": "1"}, "/tmp", None)
    assert (asked.tty, asked.stdin, asked.session) == (TerminalSize(40, 100), True, "s-1")


def test_requests_name_their_session_and_what_for() -> None:
    by_name, by_pid = blob(1, blob(3, "s-1")), blob(1, uint(1, 7))
    assert messages.read_selector(by_name) == Selector("s-1", 0)
    assert messages.read_selector(by_pid) == Selector("", 7)
    fed = messages.read_input(by_name + blob(2, blob(1, b"x\0")) + blob(3, "i-1"))
    assert (fed.data, fed.input_id) == (b"x\0", "i-1")
    told = messages.read_signal(by_pid + uint(2, 15) + blob(3, "g-1"))
    assert (told.signal, told.signal_id) == ("TERM", "g-1")


@pytest.mark.parametrize(
    "message",
    [
        b"\xff",  # a number that does not end
        b"\x0a\x05ab",  # bytes that are cut
        b"\x0b",  # a kind that nobody writes any more
        uint(1, 1),  # a number where a message must be
        blob(1, b""),  # no program
        blob(1, blob(1, b"\xff")),  # text that is none
        blob(1, blob(1, "x")) + blob(2, blob(1, uint(1, 1 << 20))),  # too wide a terminal
    ],
)
def test_what_is_no_start_is_refused_and_nothing_else_happens(message: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        messages.read_start(message)


def test_an_unknown_field_is_passed_over() -> None:
    more = blob(1, blob(1, "x")) + uint(99, 1) + blob(98, "y") + b"\x1d\0\0\0\0"  # fixed32
    assert messages.read_start(more).argv == ("x",)


def test_an_end_has_a_signed_status() -> None:
    end = Fields(messages.ended(exit_code=-1, exited=False, status="s")).inner(1).inner(3)
    assert end.number(1) == 1  # zigzag of -1
    assert sint(1, 300) == uint(1, 600)


def test_envelopes_come_whole_in_whatever_pieces() -> None:
    wire = envelope(b"one") + envelope(b"") + envelope(b"three") + last()
    for cut in range(1, len(wire)):
        envelopes = Envelopes()
        found = [*envelopes.feed(wire[:cut]), *envelopes.feed(wire[cut:])]
        assert (found, envelopes.whole) == ([b"one", b"", b"three"], True)


@pytest.mark.parametrize("wire", [b"\1\0\0\0\1x", b"\0\xff\xff\xff\xff"])
def test_compressed_and_huge_messages_are_refused(wire: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        list(Envelopes().feed(wire))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SandboxdError(ErrorCode.LEASE_ENDED, "x"), "not_found"),
        (SandboxdError(ErrorCode.SANDBOX_LOST, "x"), "not_found"),
        (SandboxdError(ErrorCode.CONFLICT, "x"), "failed_precondition"),
        (SandboxdError(ErrorCode.INTERNAL, "x"), "internal"),
        (ValueError("x"), "invalid_argument"),
        (TimeoutError(), "unavailable"),
    ],
)
def test_a_deadline_of_ours_is_never_told_as_the_commands(error: Any, code: str) -> None:
    """The reader of `deadline_exceeded` books it as the agent's own time-out."""
    assert fault_of(error).code == code
    assert Fault.of(SandboxdError(ErrorCode.TIMEOUT, "x")).code == "unavailable"
