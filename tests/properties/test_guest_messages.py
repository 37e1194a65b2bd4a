"""Whatever the guest says, we read a record, a refusal, or call it lost; never anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sandboxd.errors import SandboxdError
from sandboxd.guest.fields import Fields, loads
from sandboxd.guest.line import GuestLost, guest_failure
from sandboxd.guest.messages import read_exec, read_file, read_hello, read_readings, read_shell
from sandboxd.wire.codes import ErrorCode, Outcome

RECORD: dict[str, Any] = {
    "exec_id": "e", "state": "ended", "outcome": "exited", "exit_code": 0, "signal": None,
    "reason": None, "detail": None, "oom_kills": 0, "output_dropped": False, "duration_s": 0.1,
    "started_at": 1.8e9, "survivors": False,
    "stdout": {"bytes": 2, "head_b64": "aGk=", "tail_b64": "", "gap_bytes": 0},
    "stderr": {"bytes": 0},
}  # fmt: skip

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.binary())
def test_bytes_that_are_no_object_are_lost(data: bytes) -> None:
    assume(not data.lstrip().startswith(b"{"))
    with pytest.raises(GuestLost) as lost:
        loads(data)
    assert lost.value.sent


@given(st.sampled_from(sorted(RECORD)), anything)
def test_record_with_one_field_replaced_is_read_or_lost(name: str, value: object) -> None:
    try:
        record = read_exec(Fields({**RECORD, name: value}, "record"))
    except GuestLost:
        return
    assert (record.exit_code is not None) is (record.outcome is Outcome.EXITED)


@pytest.mark.parametrize("name", ["exec_id", "state", "exit_code", "duration_s", "stdout"])
def test_record_without_a_field_that_matters_is_lost(name: str) -> None:
    said = {key: value for key, value in RECORD.items() if key != name}
    with pytest.raises(GuestLost, match=name):
        read_exec(Fields(said, "record"))


@pytest.mark.parametrize(
    "change",
    [
        {"state": "running"},
        {"outcome": "splendid"},
        {"outcome": None},
        {"outcome": "signaled", "exit_code": None},
        {"outcome": "timeout"},
        {"exit_code": -1},
        {"exit_code": True},
        {"exit_code": 0.0},
        {"duration_s": float("nan")},
        {"stdout": {"bytes": 1, "head_b64": "aGk="}},
        {"stdout": {"bytes": 9, "head_b64": "not base64"}},
        {"stdout": {"bytes": -1}},
    ],
    ids=str,
)
def test_record_that_contradicts_itself_is_lost(change: dict[str, Any]) -> None:
    with pytest.raises(GuestLost):
        read_exec(Fields({**RECORD, **change}, "record"))


@given(anything)
def test_readers_of_other_answers_read_or_call_it_lost(said: object) -> None:
    data = json.dumps(said).encode()
    for read in (
        read_hello,
        read_readings,
        lambda d: read_file(loads(d)),
        lambda d: read_shell(loads(d)),
    ):
        try:
            read(data)
        except GuestLost:
            continue


@given(anything, anything, anything)
def test_refusal_is_an_error_of_ours_or_lost(code: object, detail: object, more: object) -> None:
    body = json.dumps({"code": code, "detail": detail, "details": more}).encode()
    try:
        error = guest_failure(body)
    except GuestLost:
        return
    assert isinstance(error, SandboxdError)


@pytest.mark.parametrize(
    ("code", "ours", "status"),
    [
        ("bad_request", ErrorCode.BAD_REQUEST, 422),
        ("range", ErrorCode.BAD_REQUEST, 416),
        ("gone", ErrorCode.CONFLICT, 410),
        ("conflict", ErrorCode.CONFLICT, 409),
        ("busy", ErrorCode.CONFLICT, 409),
        ("disk_full", ErrorCode.DISK_FULL, 507),
        ("unauthenticated", ErrorCode.INTERNAL, 500),
    ],
)
def test_refusals_have_our_codes(code: str, ours: ErrorCode, status: int) -> None:
    error = guest_failure(
        json.dumps({"code": code, "detail": "d", "details": {"kept": []}}).encode()
    )
    assert (error.code, error.status, error.detail, error.details) == (
        ours,
        status,
        "d",
        {"kept": []},
    )
