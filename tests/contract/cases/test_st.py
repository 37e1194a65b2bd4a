"""Output: exact, whole, bounded and as it comes, in every form of the call."""

from __future__ import annotations

import hashlib
import json
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from sandboxd_client import Sandboxd, Stdout
from tests.contract.cases.forms import Form, by_program, call, in_every_form, in_shell, stream
from tests.contract.speaker import Speaker, rss_bytes
from tests.contract.test_attach import attach, resize, take
from tests.support.daemon import RunningDaemon


@pytest.mark.requirement("ST-01")
@in_every_form
def test_st_01_a_character_is_whole_wherever_a_chunk_ends(sandbox: Speaker, form: Form) -> None:
    for shift in (0, 1, 2):
        write = f"import sys; sys.stdout.write('a'*{shift} + '€'*200_000)"
        seen = form(sandbox, ["python3", "-c", write])
        assert seen.stdout == ("a" * shift + "€" * 200_000).encode()
        assert seen.exit_code == 0


@pytest.mark.requirement("ST-01")
def test_st_01_texts_of_shells_and_streams_hold_no_broken_character(sandbox: Speaker) -> None:
    for shift in (0, 1, 2):
        write = f"python3 -c \"import sys; sys.stdout.write('a'*{shift} + '€'*200_000)\""
        source = "a" * shift + "€" * 200_000
        assert in_shell(sandbox, write).stdout.decode() == source
        assert sandbox.exec(write)["stdout"] == source
        with sandbox.stream(write) as events:
            texts = [event["data"] for event in events if event["type"] == "stdout"]
        assert "".join(texts) == source
    assert by_program(sandbox, ["printf", "a€€"])[1] == "a€€".encode()


@pytest.mark.requirement("ST-02")
@in_every_form
def test_st_02_bytes_come_as_they_were_written(sandbox: Speaker, form: Form) -> None:
    seen = form(sandbox, ["sh", "-c", "head -c 1048576 /dev/urandom | tee /tmp/r"])
    assert len(seen.stdout) == 1 << 20
    told = call(sandbox, "sha256sum /tmp/r").stdout[:64].decode()
    assert hashlib.sha256(seen.stdout).hexdigest() == told
    text = sandbox.exec("cat /tmp/r")["stdout"]  # replacement, never an error
    assert text == seen.stdout.decode("utf-8", "replace")


@pytest.mark.requirement("ST-03")
@pytest.mark.serial
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("out", "err"),
    [
        pytest.param(20 << 20, 64 << 20, id="light"),
        pytest.param(200 << 20, 3 << 30, id="whole", marks=pytest.mark.slow),
    ],
)
def test_st_03_endless_output_is_bounded_counted_and_marked(
    daemon: RunningDaemon, sandbox: Speaker, out: int, err: int
) -> None:
    coded = -(-out // 3) * 4
    lines = -(-coded // 76)
    floods = (
        (f"head -c {out} /dev/zero | base64; exit 7", "stdout", "stderr", coded + lines, 7),
        (f"yes | head -c {err} >&2", "stderr", "stdout", err, 0),
    )
    for cmd, loud, quiet, size, code in floods:
        before, most = rss_bytes(daemon.pid), 0
        with ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(_patient(sandbox), cmd) for _ in range(8)]
            while not all(one.done() for one in calls):
                most = max(most, rss_bytes(daemon.pid))
                time.sleep(0.02)
        for one in calls:
            seen = one.result()
            assert (seen["outcome"], seen["exit_code"], seen[f"{loud}_bytes"]) == (
                "exited", code, size,
            )  # fmt: skip
            assert (seen[f"{loud}_truncated"], seen[f"{quiet}_truncated"]) == (True, False)
            assert (1 << 20) - 16 <= len(seen[loud]) <= (1 << 20) + 64
            assert seen[loud].startswith(("AAAA", "y\n"))
            assert seen[loud].endswith(("=\n", "A\n", "y\n"))
        assert most - before < 8 * (2 << 20) + (100 << 20)


def _patient(sandbox: Speaker) -> Callable[[str], dict[str, Any]]:
    def one(cmd: str) -> dict[str, Any]:
        answer = sandbox.http.post(f"{sandbox.path}/execs", json={"cmd": cmd}, timeout=500)
        told: dict[str, Any] = answer.json()
        return told

    return one


@pytest.mark.requirement("ST-04")
@pytest.mark.timeout(60)
@in_every_form
def test_st_04_a_line_may_have_any_length(sandbox: Speaker, form: Form) -> None:
    for end, size in (("\\n", 10_000_001), ("", 10_000_000)):
        write = f"import sys; print('x'*10_000_000, end='{end}', file=sys.%s)"
        for name in ("stdout", "stderr"):
            seen = form(sandbox, ["python3", "-c", write % name], output_limit_bytes=16 << 20)
            assert (len(getattr(seen, name)), seen.exit_code) == (size, 0)


@pytest.mark.requirement("ST-04")
def test_st_04_beyond_the_cap_it_is_flagged(sandbox: Speaker) -> None:
    seen = sandbox.exec(["python3", "-c", "print('x'*10_000_000)"])
    assert (seen["stdout_bytes"], seen["stdout_truncated"], seen["exit_code"]) == (
        10_000_001, True, 0,
    )  # fmt: skip


COUNT = "import time\nfor n in range(5): print(f't{n} {time.time()}'); time.sleep(1)"


def _by_stream(sandbox: Speaker) -> Iterator[bytes]:
    with sandbox.stream(["python3", "-u", "-c", COUNT]) as events:
        yield from (event["data"].encode() for event in events if event["type"] == "stdout")


def _by_events(sandbox: Speaker) -> Iterator[bytes]:
    exec_id = sandbox.start(["python3", "-u", "-c", COUNT])
    with sandbox.http.stream("GET", f"{sandbox.path}/execs/{exec_id}/events") as answer:
        for event in map(json.loads, answer.iter_lines()):
            if event["type"] == "stdout":
                yield event["data"].encode()


def _by_attach(sandbox: Speaker) -> Iterator[bytes]:
    with attach(sandbox, sandbox.start(["python3", "-u", "-c", COUNT])) as socket:
        while (frame := socket.recv(10))[0] == 1:
            assert isinstance(frame, bytes)
            yield frame[1:]


def _by_output(sandbox: Speaker) -> Iterator[bytes]:
    exec_id, offset = sandbox.start(["python3", "-u", "-c", COUNT]), 0
    while True:
        answer = sandbox.get(f"/execs/{exec_id}/output", offset=offset, wait_s=10)
        if answer.content:
            yield answer.content
        elif answer.headers["x-ended"] == "1":
            return
        offset = int(answer.headers["x-next-offset"])


def _by_sdk(sandbox: Speaker) -> Iterator[bytes]:
    with Sandboxd(str(sandbox.http.base_url).rstrip("/")) as client:
        there = client.sandbox(sandbox.path.rsplit("/", 1)[1])
        with closing(there.stream(["python3", "-u", "-c", COUNT])) as events:
            yield from (event.data for event in events if isinstance(event, Stdout))


@pytest.mark.requirement("ST-05")
@pytest.mark.serial
def test_st_05_output_comes_as_it_is_printed(sandbox: Speaker) -> None:
    def read(form: Callable[[Speaker], Iterator[bytes]]) -> list[tuple[str, float, float]]:
        came, rest = [], b""
        for piece in form(sandbox):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                name, printed = line.decode().split()
                came.append((name, float(printed), time.time()))
        return came

    forms = (_by_stream, _by_events, _by_attach, _by_output, _by_sdk)
    with ThreadPoolExecutor(len(forms)) as pool:
        for came in pool.map(read, forms):
            assert [name for name, _, _ in came] == [f"t{n}" for n in range(5)]
            assert all(arrived - printed < 1 for _, printed, arrived in came)
            assert came[0][2] < came[1][1]


@pytest.mark.requirement("ST-07")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("runs", "at_once"),
    [pytest.param(24, 8, id="few"), pytest.param(1000, 20, id="all", marks=pytest.mark.slow)],
)
@in_every_form
def test_st_07_the_last_bytes_before_an_exit_are_there(
    sandbox: Speaker, form: Form, runs: int, at_once: int
) -> None:
    script = "import os,sys;sys.stdout.write('z'*100003);sys.stdout.flush();os._exit(0)"

    def one(_: int) -> tuple[bool, int | None]:
        seen = form(sandbox, ["python3", "-c", script])
        return seen.stdout == b"z" * 100_003, seen.exit_code

    with ThreadPoolExecutor(at_once) as pool:
        assert list(pool.map(one, range(runs))) == [(True, 0)] * runs


@pytest.mark.requirement("ST-07")
def test_st_07_so_are_those_of_shells_and_terminals(sandbox: Speaker) -> None:
    script = "import os,sys;sys.stdout.write('z'*100003);sys.stdout.flush();os._exit(0)"
    for _ in range(20):
        assert in_shell(sandbox, f'python3 -c "{script}"').stdout == b"z" * 100_003
        tty = {"rows": 24, "cols": 80}
        assert stream(sandbox, ["python3", "-c", script], tty=tty).stdout == b"z" * 100_003


@pytest.mark.requirement("ST-11")
@pytest.mark.timeout(60)
def test_st_11_a_terminal_has_its_size_before_its_program_looks(sandbox: Speaker) -> None:
    def one(number: int) -> tuple[bytes, bytes]:
        tty = {"rows": 40, "cols": 120}
        exec_id = sandbox.start(["sh"], tty=tty, env={"PS1": "> "})
        with attach(sandbox, exec_id) as socket:
            take(socket, b"> ")
            socket.send(b"\0stty size\n")
            first = take(socket, b"\r\n> ")
            if number % 2:
                answer = sandbox.post(f"/execs/{exec_id}/resize", {"rows": 50, "cols": 200})
                assert answer.status_code == 200
            else:
                resize(socket, 50, 200)
            socket.send(b"\0stty size\n")
            second = take(socket, b"\r\n> ")
            socket.send(b"\0exit\n")
        return first.split(b"\r\n")[1], second.split(b"\r\n")[1]

    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(one, range(50))) == [(b"40 120", b"50 200")] * 50


@pytest.mark.requirement("ST-11")
@in_every_form
def test_st_11_so_it_is_for_a_program_that_looks_at_once(sandbox: Speaker, form: Form) -> None:
    for _ in range(50):
        seen = form(sandbox, ["stty", "size"], tty={"rows": 40, "cols": 120})
        assert (seen.stdout, seen.exit_code) == (b"40 120\r\n", 0)


def test_events_go_on_behind_every_number_and_attachments_from_every_offset(
    sandbox: Speaker,
) -> None:
    text = "for n in 1 2 3 4 5 6; do printf 'o€%s' $n; printf 'e%s' $n >&2; sleep 0.02; done"
    exec_id = sandbox.exec(text)["exec_id"]
    whole = sandbox.events(exec_id)
    for after in range(len(whole)):
        assert sandbox.events(exec_id, after=after) == whole[after:]
    out = b"".join(_data(event) for event in whole if event["type"] == "stdout")
    err = b"".join(_data(event) for event in whole if event["type"] == "stderr")
    assert (len(out), len(err)) == (30, 12)
    for offset in range(len(out) + 3):
        got = {1: b"", 2: b""}
        places = {"stdout": offset, "stderr": min(offset, 12)}
        with attach(sandbox, exec_id, **places) as socket:
            while (frame := socket.recv(10))[0] != 3:
                assert isinstance(frame, bytes)
                got[frame[0]] += frame[1:]
        assert got == {1: out[offset:], 2: err[offset:]}


def _data(event: dict[str, Any]) -> bytes:
    return b64decode(event["data_b64"]) if "data_b64" in event else event["data"].encode()
