"""Command sessions over the wire: what is sent again, come back to, or sent wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from sandboxd.compat.connect.envelopes import STREAM_TYPE, UNARY_TYPE, Envelopes, envelope
from sandboxd.compat.connect.protobuf import Fields, blob, uint
from tests.support.daemon import RunningDaemon

API = "/api/v1/sandbox"


class Gate:
    """One sandbox's gateway."""

    def __init__(self, http: httpx.Client, sandbox: str) -> None:
        self.http = http
        self.below = f"/v1/sandboxes/{sandbox}/prime/command_session.CommandSession"

    def stream(self, method: str, message: bytes, **headers: str) -> tuple[list[Any], bytes]:
        """Events of a stream as (kind, value), and its last envelope's bytes."""
        answer = self.http.post(
            f"{self.below}/{method}",
            content=envelope(message),
            headers={"Content-Type": STREAM_TYPE, **headers},
        )
        assert answer.status_code == 200, answer.text
        events = [_event(Fields(each).inner(1)) for each in Envelopes().feed(answer.content)]
        return events, answer.content[answer.content.rindex(b"{") :]

    def ask(self, method: str, message: bytes) -> httpx.Response:
        """The answer to one message."""
        headers = {"Content-Type": UNARY_TYPE}
        return self.http.post(f"{self.below}/{method}", content=message, headers=headers)


def _event(event: Fields) -> tuple[str, Any]:
    if 1 in event:
        return "start", event.inner(1).number(1)
    if 2 in event:
        data = event.inner(2)
        return next((n, data.data(k)) for k, n in ((1, "out"), (2, "err"), (3, "pty")) if k in data)
    if 3 in event:
        return "end", event.inner(3).number(1) // 2
    return "keepalive", None


def start(command: str, *, session: str = "", stdin: bool = False) -> bytes:
    spec = blob(1, "/bin/bash") + blob(2, "-c") + blob(2, command)
    return blob(1, spec) + uint(4, stdin) + (blob(5, session) if session else b"")


def named(session: str) -> bytes:
    return blob(1, blob(3, session))


@pytest.fixture
def gate(daemon: RunningDaemon) -> Iterator[Gate]:
    with httpx.Client(base_url=daemon.url, timeout=15) as http:
        made = http.post(API, json={"name": "s", "docker_image": "any", "vm": True}).json()
        http.get(f"/v1/sandboxes/{made['id']}", params={"wait_s": 10})
        yield Gate(http, made["id"])
        http.delete(f"{API}/{made['id']}")


def test_a_start_that_is_sent_again_attaches_and_runs_nothing_twice(gate: Gate) -> None:
    asked = start("echo ran >> /tmp/count; cat /tmp/count", session="s-1")
    first, _ = gate.stream("Start", asked)
    again, _ = gate.stream("Start", asked)
    assert first == again
    assert [value for kind, value in first if kind == "out"] == [b"ran\n"]
    _, last = gate.stream("Start", start("another", session="s-1"))
    assert b"failed_precondition" in last


def test_who_comes_back_hears_the_start_and_the_end_but_no_output_twice(gate: Gate) -> None:
    events, _ = gate.stream("Start", start("echo once; exit 3", session="s-2"))
    back, _ = gate.stream("Connect", named("s-2"))
    assert [kind for kind, _ in events] == ["start", "out", "end"]
    assert back == [events[0], ("end", 3)]
    by_number, _ = gate.stream("Connect", blob(1, uint(1, events[0][1])))
    assert by_number == back


def test_input_and_signals_that_are_sent_again_arrive_once(gate: Gate) -> None:
    started = gate.http.stream(
        "POST", f"{gate.below}/Start",
        content=envelope(start("read a; read b; echo $a $b; sleep 60", session="s-3", stdin=True)),
        headers={"Content-Type": STREAM_TYPE},
    )  # fmt: skip
    with started as answer:
        envelopes, said = Envelopes(), answer.iter_raw()
        assert next(envelopes.feed(next(said)))
        for data, input_id in ((b"one\n", "i-1"), (b"one\n", "i-1"), (b"two\n", "i-2")):
            message = named("s-3") + blob(2, blob(1, data)) + blob(3, input_id)
            assert gate.ask("SendInput", message).status_code == 200
        (told,) = envelopes.feed(next(said))
        assert _event(Fields(told).inner(1)) == ("out", b"one two\n")
        listed = Fields(gate.ask("List", b"").content)
        assert [Fields(each).text(4) for each in listed.every(1)] == ["s-3"]
        for _ in range(2):
            stopped = gate.ask("SendSignal", named("s-3") + uint(2, 9) + blob(3, "g-1"))
            assert stopped.status_code == 200
        rest = [_event(Fields(each).inner(1)) for piece in said for each in envelopes.feed(piece)]
    assert rest == [("end", 137)]
    assert gate.ask("SendInput", named("s-3") + blob(2, blob(1, b"x"))).status_code == 400


def test_a_terminal_has_its_size_and_changes_it(gate: Gate) -> None:
    pty = blob(2, blob(1, uint(1, 100) + uint(2, 40)))
    events, _ = gate.stream("Start", start("stty size", session="s-4") + pty)
    assert [value for kind, value in events if kind == "pty"] == [b"40 100\r\n"]
    assert gate.ask("Update", named("s-4") + pty).status_code == 400  # it has ended


def test_a_stream_of_input_is_written_as_it_comes(gate: Gate) -> None:
    asked = start("head -c 6", session="s-5", stdin=True)
    begun = gate.http.stream(
        "POST", f"{gate.below}/Start",
        content=envelope(asked), headers={"Content-Type": STREAM_TYPE},
    )  # fmt: skip
    with begun as answer:
        said = answer.iter_raw()
        next(said)
        wire = envelope(blob(1, named("s-5"))) + envelope(blob(3, b""))
        wire += b"".join(envelope(blob(2, blob(1, blob(1, each)))) for each in (b"abc", b"def"))
        fed = gate.http.post(
            f"{gate.below}/StreamInput", content=wire, headers={"Content-Type": STREAM_TYPE}
        )
        assert (fed.status_code, fed.content.endswith(b"{}")) == (200, True)
        assert b"abcdef" in b"".join(said)


@pytest.mark.parametrize(
    ("method", "message", "code"),
    [
        ("Connect", named("nobody"), b"not_found"),
        ("Connect", blob(1, uint(1, 7)), b"not_found"),
        ("Connect", b"", b"invalid_argument"),
        ("Start", b"\xff", b"invalid_argument"),
        ("Start", start("true", session="x" * 200), b"invalid_argument"),
    ],
)
def test_what_cannot_be_is_told_at_the_end_of_the_stream(
    gate: Gate, method: str, message: bytes, code: bytes
) -> None:
    events, last = gate.stream(method, message)
    assert (events, code in last) == ([], True)


def test_a_command_that_meets_its_deadline_is_told_by_the_deadlines_code(gate: Gate) -> None:
    events, last = gate.stream("Start", start("sleep 60"), **{"Connect-Timeout-Ms": "300"})
    assert ([kind for kind, _ in events], b"deadline_exceeded" in last) == (["start"], True)


def test_a_deleted_sandbox_has_no_sessions(gate: Gate) -> None:
    sandbox = gate.below.split("/")[3]
    gate.http.delete(f"{API}/{sandbox}")
    _, last = gate.stream("Start", start("true"))
    assert b"not_found" in last
    told = gate.ask("SendInput", named("s") + blob(2, blob(1, b"x")))
    assert (told.status_code, told.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data; boundary=x", b"no form"),
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: name="file"\r\n\r\ncut'),
    ],
)
def test_an_upload_of_another_form_writes_nothing_and_is_told_why(
    gate: Gate, kind: str, body: bytes
) -> None:
    below = gate.below.rpartition("/")[0]
    told = gate.http.post(
        f"{below}/upload", params={"path": "/tmp/x"}, content=body, headers={"Content-Type": kind}
    )
    assert (told.status_code, bool(told.json()["detail"])) == (422, True)
    assert gate.http.get(f"{below}/read-file", params={"path": "/tmp/x"}).status_code == 404
    directory = gate.http.get(f"{below}/download", params={"path": "/tmp"})
    assert (directory.status_code, directory.json()["code"]) == (400, "file_is_directory")
