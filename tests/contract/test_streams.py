"""Output over HTTP: exact, bounded, as it comes, and again from where it was cut."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.contract.speaker import Speaker, eventually, problem, rss_bytes
from tests.support.daemon import RunningDaemon


def text_of(events: list[dict[str, Any]], stream: str = "stdout") -> str:
    return "".join(e["data"] for e in events if e["type"] == stream)


def bytes_of(event: dict[str, Any]) -> bytes:
    return base64.b64decode(event["data_b64"]) if "data_b64" in event else event["data"].encode()


@pytest.mark.requirement("ST-01")
@pytest.mark.parametrize("shift", [0, 1, 2])
def test_characters_are_never_cut_in_two(sandbox: Speaker, shift: int) -> None:
    """ST-01."""
    source = "a" * shift + "€" * 200_000
    cmd = ["python3", "-c", f"import sys; sys.stdout.write('a'*{shift} + '€'*200_000)"]
    assert sandbox.exec(cmd)["stdout"] == source
    with sandbox.stream(cmd) as stream:
        events = list(stream)
    assert text_of(events) == source
    offset = 0
    for event in events[1:-1]:
        assert (event["type"], event["offset"]) == ("stdout", offset)
        offset += len(event["data"].encode())


@pytest.mark.requirement("ST-01")
def test_cut_text_shows_no_broken_characters_at_its_seams(sandbox: Speaker) -> None:
    """ST-01, beyond the cap."""
    cmd = ["python3", "-c", "import sys; sys.stdout.write('€'*200_000)"]
    for limit in (1024, 1025, 1026):
        seen = sandbox.exec(cmd, output_limit_bytes=limit)
        assert seen["stdout_truncated"] is True
        assert seen["stdout_bytes"] == 600_000
        assert "\ufffd" not in seen["stdout"]
        assert "bytes not kept" in seen["stdout"]


@pytest.mark.requirement("ST-02")
def test_bytes_of_every_value_come_exactly(sandbox: Speaker) -> None:
    """ST-02."""
    seen = sandbox.post(
        "/execs",
        {"cmd": "head -c 1048576 /dev/urandom | tee /tmp/r"},
        encoding="base64",
    ).json()
    whole = base64.b64decode(seen["stdout_b64"])
    assert (len(whole), seen["stdout_truncated"]) == (1 << 20, False)
    digest = hashlib.sha256(whole).hexdigest()
    assert sandbox.exec("sha256sum /tmp/r")["stdout"][:64] == digest
    with sandbox.stream("cat /tmp/r") as stream:
        joined = b"".join(bytes_of(e) for e in stream if e["type"] == "stdout")
    assert hashlib.sha256(joined).hexdigest() == digest
    assert isinstance(sandbox.exec("cat /tmp/r")["stdout"], str)


@pytest.mark.requirement("ST-03")
@pytest.mark.timeout(90)
def test_floods_are_cut_at_the_cap_and_do_not_fill_the_daemon(
    daemon: RunningDaemon, sandbox: Speaker
) -> None:
    """ST-03, scaled: 8 at once, 40 MB each."""
    before = rss_bytes(daemon.pid)
    flood = "head -c 30M /dev/zero | base64 -w0; exit 7"

    def one(number: int) -> dict[str, Any]:
        return sandbox.exec(flood if number % 2 else f"({flood}) >&2")

    with ThreadPoolExecutor(8) as pool:
        for number, seen in enumerate(pool.map(one, range(8))):
            loud, quiet = ("stdout", "stderr") if number % 2 else ("stderr", "stdout")
            assert (seen["outcome"], seen["exit_code"]) == ("exited", 7)
            assert (seen[f"{loud}_truncated"], seen[f"{quiet}_truncated"]) == (True, False)
            assert seen[f"{loud}_bytes"] == 40 << 20
            assert (1 << 20) - 16 <= len(seen[loud]) <= (1 << 20) + 64
    assert rss_bytes(daemon.pid) - before < 8 * (2 << 20) + (100 << 20)


@pytest.mark.requirement("ST-04")
@pytest.mark.parametrize(("end", "size"), [("\\n", 10_000_001), ("", 10_000_000)])
def test_one_long_line_is_delivered_whole(sandbox: Speaker, end: str, size: int) -> None:
    """ST-04."""
    for stream in ("stdout", "stderr"):
        cmd = [
            "python3",
            "-c",
            f"import sys; print('x'*10_000_000, end='{end}', file=sys.{stream})",
        ]
        seen = sandbox.exec(cmd, output_limit_bytes=16 << 20)
        assert (len(seen[stream]), seen[f"{stream}_truncated"], seen["exit_code"]) == (
            size,
            False,
            0,
        )


@pytest.mark.requirement("ST-05")
def test_lines_come_as_they_are_printed(sandbox: Speaker) -> None:
    """ST-05."""
    with sandbox.stream("for n in 0 1 2 3; do date +t$n.%s.%N; sleep 0.3; done") as stream:
        for event in stream:
            if event["type"] == "stdout":
                assert time.time() - float(event["data"].partition(".")[2]) < 1


@pytest.mark.requirement("ST-07")
def test_the_last_bytes_before_the_end_are_there(sandbox: Speaker) -> None:
    """ST-07, scaled: 100 of 1000."""
    script = "import os,sys;sys.stdout.write('z'*100003);sys.stdout.flush();os._exit(0)"

    def one(_: int) -> tuple[int, int]:
        seen = sandbox.exec(["python3", "-c", script])
        return len(seen["stdout"]), seen["exit_code"]

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(one, range(100))) == {(100_003, 0)}


def test_events_have_the_shapes_of_the_contract(sandbox: Speaker) -> None:
    with sandbox.stream("echo out; echo err >&2; exit 5", exec_id="shapes") as stream:
        events = list(stream)
    assert [e["seq"] for e in events] == list(range(1, len(events) + 1))
    assert events[0]["type"] == "started"
    assert {e["type"] for e in events[1:-1]} == {"stdout", "stderr"}
    assert all(e["stream"] == e["type"] and e["offset"] == 0 for e in events[1:-1])
    last = events[-1]
    assert (last["type"], last["exec"]["exit_code"]) == ("ended", 5)
    assert not {"stdout", "stderr", "stdout_b64"} & set(last["exec"])
    assert sandbox.events("shapes") == events
    for after in range(len(events)):
        assert sandbox.events("shapes", after=after) == events[after:]
    assert sandbox.events("shapes", after=99) == events[-1:]  # it always says how it ended


@pytest.mark.requirement("ST-10")
def test_a_reader_that_comes_back_sees_each_line_once(sandbox: Speaker) -> None:
    """ST-10, scaled."""
    counter = "for n in $(seq 60); do echo $n; sleep 0.02; done; exit 9"
    seen: list[dict[str, Any]] = []
    with sandbox.stream(counter, exec_id="count") as stream:
        for event in stream:
            seen.append(event)
            if text_of(seen).count("\n") >= 10:
                break
    with sandbox.http.stream(
        "GET", f"{sandbox.path}/execs/count/events", params={"after": seen[-1]["seq"]}
    ) as response:
        seen += [json.loads(line) for line in response.iter_lines()]
    assert text_of(seen) == "".join(f"{n}\n" for n in range(1, 61))
    assert seen[-1]["exec"]["exit_code"] == 9
    assert sandbox.events("count") == seen


def test_kept_output_is_read_by_ranges_and_the_rest_refused(sandbox: Speaker) -> None:
    flood = "import sys; sys.stdout.write('h'*500 + 'm'*999_000 + 't'*500)"
    seen = sandbox.exec(["python3", "-c", flood], output_limit_bytes=1024)
    at = f"/execs/{seen['exec_id']}/output"
    head = sandbox.get(at, offset=10, limit=20)
    assert (head.content, head.headers["x-next-offset"]) == (b"h" * 20, "30")
    tail = sandbox.get(at, offset=999_500)
    assert (tail.content, tail.headers["x-next-offset"]) == (b"t" * 500, "1000000")
    end = sandbox.get(at, offset=1_000_000, wait_s=5)
    assert (end.content, end.headers["x-next-offset"]) == (b"", "1000000")
    assert end.headers["x-ended"] == "1"
    for offset in (500_000, 1_000_001):
        body = problem(sandbox.get(at, offset=offset), 416, "bad_request")
        assert body["details"]["kept"] == [[0, 512], [999_488, 1_000_000]]
    listed = sandbox.get("/execs").json()["execs"][0]
    assert (listed["stdout_truncated"], listed["stderr_truncated"]) == (True, False)


def test_a_late_reader_is_told_of_the_gap_and_its_size(sandbox: Speaker) -> None:
    exec_id = sandbox.exec("seq 1 200000", output_limit_bytes=4096)["exec_id"]
    offset = 0
    for event in sandbox.events(exec_id)[1:-1]:
        assert event["offset"] == offset
        offset += event["bytes"] if event["type"] == "gap" else len(bytes_of(event))
    assert offset == sandbox.get(f"/execs/{exec_id}").json()["stdout_bytes"]


def test_output_of_a_running_command_is_waited_for(sandbox: Speaker) -> None:
    exec_id = sandbox.start("echo one; sleep 0.3; echo two; sleep 60")
    at = f"/execs/{exec_id}/output"
    assert sandbox.get(at, wait_s=5).content == b"one\n"
    late = sandbox.get(at, offset=4, wait_s=5)
    assert (late.content, late.headers["x-ended"]) == (b"two\n", "0")
    began = time.monotonic()
    assert sandbox.get(at, offset=8, wait_s=0.3).content == b""
    assert 0.2 < time.monotonic() - began < 3


@pytest.mark.timeout(60)
def test_the_oldest_texts_go_first_and_say_so(sandbox: Speaker) -> None:
    """Kept output is bounded per sandbox: 64 MiB."""
    flood = "head -c 20M /dev/zero | tr '\\0' x"
    for number in range(4):
        sandbox.exec(flood, exec_id=f"f{number}", output_limit_bytes=32 << 20)
    oldest = sandbox.get("/execs/f0").json()
    assert (oldest["output_dropped"], oldest["exit_code"]) == (True, 0)
    assert oldest["stdout_bytes"] == 20 << 20
    newest = sandbox.get("/execs/f3").json()
    assert (newest["output_dropped"], len(newest["stdout"])) == (False, 20 << 20)


@pytest.mark.requirement("ST-09")
def test_a_sandbox_that_dies_under_a_stream_ends_it_with_the_reason(
    http: httpx.Client, sandbox: Speaker
) -> None:
    """ST-09: here by a release from another side; the stream is never just silent."""
    with sandbox.stream("while :; do date; sleep 0.2; done") as stream:
        assert next(stream)["type"] == "started"
        assert next(stream)["type"] == "stdout"
        http.delete(sandbox.path)
        last = list(stream)[-1]
    assert last["type"] == "error"
    assert set(last) >= {"seq", "type", "problem"}
    assert last["problem"]["code"] == "lease_ended"
    assert last["problem"]["details"]["end"]["reason"] == "released"
    problem(sandbox.get("/execs"), 410, "lease_ended")


def test_a_reader_that_takes_nothing_holds_up_only_the_pipe(
    daemon: RunningDaemon, sandbox: Speaker
) -> None:
    before = rss_bytes(daemon.pid)
    with sandbox.stream("head -c 200M /dev/zero | tr '\\0' x", exec_id="slow") as stream:
        assert next(stream)["type"] == "started"
        eventually(
            lambda: sandbox.get("/execs/slow").json()["stdout_bytes"] > 1 << 20,
            within_s=10,
            what="the command writes",
        )
        assert rss_bytes(daemon.pid) - before < 64 << 20
        assert sandbox.exec("echo others go on")["exit_code"] == 0
    assert sandbox.ended("slow")["stdout_bytes"] == 200 << 20


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_silent_stream_says_every_15_seconds_that_it_lives(sandbox: Speaker) -> None:
    with sandbox.stream("echo first; sleep 32; exit 4") as stream:
        events = [(time.monotonic(), event) for event in stream]
    kinds = [event["type"] for _, event in events]
    assert kinds == ["started", "stdout", "keepalive", "keepalive", "ended"]
    assert [event["seq"] for _, event in events] == [1, 2, 2, 2, 3]
    assert events[2][0] - events[1][0] == pytest.approx(15, abs=2)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_reader_that_takes_nothing_for_30_seconds_is_dropped(sandbox: Speaker) -> None:
    with (
        httpx.Client(base_url=sandbox.http.base_url, timeout=90) as patient,
        sandbox.stream("yes | head -c 300M", exec_id="dropped") as stream,
    ):
        assert next(stream)["type"] == "started"
        ended = Speaker(patient, sandbox.path).ended("dropped", within_s=80)
        assert (ended["stdout_bytes"], ended["stdout_truncated"]) == (300 << 20, True)
    assert any(event["type"] == "gap" for event in sandbox.events("dropped"))
