"""The deciding parts of the SDK: no socket, no loop, no daemon."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sandboxd_client
from sandboxd.wire.codes import CODES, ErrorCode
from sandboxd_client import (
    ApiUnreachable,
    Capacity,
    FileNotFound,
    SandboxdError,
    SandboxInfo,
    error_from_problem,
)
from sandboxd_client._core.calls import path_of
from sandboxd_client._core.idle import IdleConnections
from sandboxd_client._core.ids import fresh_id
from sandboxd_client._core.ndjson import LineSplitter
from sandboxd_client._core.retries import Patience
from sandboxd_client._core.settings import address_of, key_of
from sandboxd_client.errors import ERROR_CLASSES


def _passing(after_s: float | None = None) -> Capacity:
    return Capacity("full", problem={"retry_safe": True, "retry_after_s": after_s})


def _patience(deadline: float = 100.0) -> Patience:
    return Patience(deadline=deadline, chance=random.Random(7))  # noqa: S311 - repeatable


# ----------------------------------------------------------------------------------- retries


def test_only_passing_states_are_tried_again() -> None:
    assert _patience().pause(_passing(), safe=False, now=0) is not None
    assert _patience().pause(FileNotFound("no"), safe=True, now=0) is None


def test_what_may_have_started_is_tried_again_only_if_it_is_safe() -> None:
    lost = ApiUnreachable("lost", retry_safe=False)
    refused = ApiUnreachable("refused", retry_safe=True)
    assert _patience().pause(lost, safe=False, now=0) is None
    assert _patience().pause(lost, safe=True, now=0) is not None
    assert _patience().pause(refused, safe=False, now=0) is not None


def test_pauses_grow_and_stay_bounded() -> None:
    patience = _patience(deadline=1e9)
    pauses = [patience.pause(_passing(), safe=True, now=0) or 0 for _ in range(12)]
    assert 0.05 <= pauses[0] <= 0.1
    assert max(pauses) <= 3.0
    assert min(pauses[6:]) >= 1.5


@given(after_s=st.floats(0.01, 60), seed=st.integers(0, 1000))
def test_the_servers_wish_is_never_undercut(after_s: float, seed: int) -> None:
    patience = Patience(deadline=1e9, chance=random.Random(seed))  # noqa: S311 - repeatable
    pause = patience.pause(_passing(after_s), safe=True, now=0)
    assert pause is not None
    assert after_s <= pause <= 1.25 * after_s


def test_no_pause_ends_after_the_deadline() -> None:
    assert _patience(deadline=10).pause(_passing(5), safe=True, now=6) is None
    assert _patience(deadline=0).pause(_passing(), safe=True, now=0) is None


# ----------------------------------------------------------------------------------- connections


def test_the_connection_used_last_is_used_next() -> None:
    idle: IdleConnections[str] = IdleConnections()
    idle.put("cold", now=0)
    idle.put("warm", now=1)
    assert [idle.take(), idle.take(), idle.take()] == ["warm", "cold", None]


@given(st.lists(st.floats(0, 1000), max_size=20), st.floats(0, 2000))
def test_connections_expire_after_their_time_and_only_then(times: list[float], now: float) -> None:
    idle: IdleConnections[float] = IdleConnections(keep_s=240)
    for time in sorted(times):
        idle.put(time, now=time)
    old = idle.expire(now=now)
    assert old == [time for time in sorted(times) if now - time > 240]
    assert len(idle) == len(times) - len(old)
    assert idle.clear() == [time for time in sorted(times) if now - time <= 240]
    assert len(idle) == 0


# ----------------------------------------------------------------------------------- lines


def _cut(data: bytes, places: list[int]) -> Iterator[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return (data[a:b] for a, b in pairwise(edges))


@pytest.mark.requirement("ST-04")
@given(
    st.lists(st.binary(min_size=1, max_size=40).filter(lambda b: b"\n" not in b)),
    st.lists(st.integers(0, 2000), max_size=30),
)
def test_lines_come_whole_however_the_chunks_fall(lines: list[bytes], cuts: list[int]) -> None:
    """ST-04."""
    splitter = LineSplitter()
    data = b"".join(line + b"\n" for line in lines)
    assert [line for chunk in _cut(data, cuts) for line in splitter.feed(chunk)] == lines


def test_a_line_that_never_ends_is_an_error() -> None:
    splitter = LineSplitter()
    for _ in range(64):
        assert splitter.feed(bytes(1 << 20)) == []
    with pytest.raises(ValueError, match="longer than"):
        splitter.feed(b"x")


# ----------------------------------------------------------------------------------- errors


def test_every_code_that_can_be_answered_has_a_class_of_its_own_name() -> None:
    answered = {code for code, facts in CODES.items() if facts.status is not None}
    assert set(ERROR_CLASSES) == answered
    for code, cls in ERROR_CLASSES.items():
        assert cls.__name__ == "".join(word.title() for word in code.split("_"))
        assert getattr(sandboxd_client, cls.__name__) is cls


def test_an_error_keeps_what_the_daemon_told_over_what_its_code_means() -> None:
    told = {
        "code": "start_failed",
        "detail": "setup",
        "fault": "task",
        "mask": False,
        "status": 502,
    }
    error = error_from_problem({**told, "request_id": "r", "details": {"a": 1}})
    assert type(error) is ERROR_CLASSES[ErrorCode.START_FAILED]
    assert (error.fault, error.mask, error.status) == ("task", False, 502)
    assert (error.request_id, error.details) == ("r", {"a": 1})
    assert str(error) == "start_failed: setup"


def test_a_code_from_the_future_is_an_error_that_keeps_it_and_masks() -> None:
    error = error_from_problem({"code": "melted", "fault": "moon", "detail": "hot"})
    assert type(error) is SandboxdError
    assert (error.code, error.mask, error.fault) == ("melted", True, "infra")


def test_all_public_names_exist() -> None:
    for name in sandboxd_client.__all__:
        assert hasattr(sandboxd_client, name)


# ----------------------------------------------------------------------------------- the rest


def test_records_keep_what_they_do_not_know() -> None:
    info = SandboxInfo.from_json(
        {"id": "s", "state": "queued", "queue": {"position": 3}, "new_in_2030": 1}
    )
    assert info.queue is not None
    assert info.queue.position == 3
    assert info.raw["new_in_2030"] == 1


def test_paths_and_queries_are_escaped() -> None:
    path = path_of("sandboxes", "a/b?c", query={"path": "x&y=é", "none": None, "deep": True})
    assert path == "/v1/sandboxes/a%2Fb%3Fc?path=x%26y%3D%C3%A9&deep=true"
    assert path_of("sandboxes", query={"label": ["a=1", "b=2"]}).endswith(
        "?label=a%3D1&label=b%3D2"
    )
    assert path_of("sandboxes", query={"label": []}) == "/v1/sandboxes"


def test_ids_are_what_the_contract_takes() -> None:
    ids = {fresh_id("exec") for _ in range(100)}
    assert len(ids) == 100
    assert all(len(i) <= 128 and i.replace("-", "").isalnum() for i in ids)


def test_the_address_comes_from_the_argument_then_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SANDBOXD_API_URL", "http://there:1")
    monkeypatch.setenv("SANDBOXD_API_KEY", "secret")
    assert (address_of(None).host, address_of(None).port) == ("there", 1)
    here = address_of("https://u:p@here/base/")
    assert (here.host, here.port, here.prefix, here.authority) == ("here", 443, "/base", "here")
    assert here.tls is not None
    assert (key_of(None), key_of("mine")) == ("secret", "mine")
    monkeypatch.delenv("SANDBOXD_API_URL")
    assert (address_of(None).host, address_of(None).port) == ("127.0.0.1", 8420)
    for wrong in ("there:1", "ftp://there", "http://"):
        with pytest.raises(ValueError, match="must be http"):
            address_of(wrong)
