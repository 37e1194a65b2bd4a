"""What clients of Prime's dialects are told, and what their uploads hold."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from sandboxd.compat.connect.faults import Broken
from sandboxd.compat.connect.protobuf import Fields
from sandboxd.compat.prime.gateway import result_of
from sandboxd.compat.prime.multipart import boundary_of, only_file
from sandboxd.compat.prime.session_book import Session
from sandboxd.compat.prime.session_events import end_of
from sandboxd.compat.prime.shown import error_of, status_of
from sandboxd.errors import SandboxdError
from sandboxd.model.command import ExecRecord
from sandboxd.model.lease import End, Lease, LeaseState, LeaseTerms
from sandboxd.model.template import BoxSpec
from sandboxd.wire.codes import END_VERDICTS, EndReason, ErrorCode, Outcome, StartFailure

LEASE = Lease(
    id="sbx-1",
    owner="o",
    terms=LeaseTerms(template="python", spec=BoxSpec(image="host")),
    state=LeaseState.ENDED,
    created_at=0,
    backend="fake",
)


def ended(reason: EndReason, *, code: ErrorCode | None = None) -> Lease:
    verdict = END_VERDICTS[reason]
    end = End(
        reason=reason, code=code or verdict.code, fault=verdict.fault, mask=verdict.mask,
        detail="", at=1,
    )  # fmt: skip
    return replace(LEASE, end=end)


def test_every_end_of_a_lease_is_one_that_clients_stop_waiting_for() -> None:
    told = {reason: status_of(ended(reason)) for reason in EndReason}
    assert set(told.values()) == {"TERMINATED", "TIMEOUT", "ERROR"}
    assert told[EndReason.RELEASED] == told[EndReason.RUN_LOST] == "TERMINATED"
    assert told[EndReason.DIED] == told[EndReason.NODE_LOST] == told[EndReason.OOM] == "ERROR"


@pytest.mark.parametrize(
    ("lease", "kind"),
    [
        (ended(EndReason.OOM), "OOM_KILLED"),
        (ended(EndReason.EXPIRED), "TIMEOUT"),
        (ended(EndReason.IDLE), "TIMEOUT"),
        (ended(EndReason.MAKE_FAILED, code=ErrorCode.IMAGE_UNAVAILABLE), "IMAGE_PULL_FAILED"),
        (ended(EndReason.MAKE_FAILED), "SANDBOX_MAKE_FAILED"),
        (ended(EndReason.EVICTED), "SANDBOX_EVICTED"),
        (ended(EndReason.RELEASED), None),
    ],
)
def test_ends_have_the_types_that_clients_raise_errors_of_their_own_for(
    lease: Lease, kind: str | None
) -> None:
    assert error_of(lease)[0] == kind


def record(outcome: Outcome, **more: Any) -> ExecRecord:
    return ExecRecord(exec_id="e", outcome=outcome, **more)


@pytest.mark.parametrize(
    ("ended_so", "status"),
    [
        (record(Outcome.EXITED, exit_code=3), 3),
        (record(Outcome.SIGNALED, signal="SEGV"), 139),
        (record(Outcome.OOM), 137),  # at the sandbox's own limit: the agent's doing
        (record(Outcome.KILLED, signal="KILL"), 137),
        (record(Outcome.START_FAILED, reason=StartFailure.NOT_FOUND, detail="gone"), 127),
        (record(Outcome.START_FAILED, reason=StartFailure.TOO_LONG, detail="long"), 126),
    ],
)
def test_a_commands_own_end_is_its_status_in_both_dialects(
    ended_so: ExecRecord, status: int
) -> None:
    assert result_of(ended_so)["exit_code"] == status
    end = Fields(end_of(ended_so)[-1]).inner(1).inner(3)
    assert end.number(1) == 2 * status  # zigzag
    assert (ended_so.detail or "") in result_of(ended_so)["stderr"]


@pytest.mark.parametrize(
    ("ended_so", "code"),
    [
        (record(Outcome.OOM, host_short=True), "internal"),  # the machine ran short: ours
        (record(Outcome.LOST), "internal"),
        (record(Outcome.START_FAILED, reason=StartFailure.BAD_CWD), "invalid_argument"),
        (record(Outcome.START_FAILED, reason=StartFailure.BAD_USER), "invalid_argument"),
    ],
)
def test_an_end_that_is_masked_is_no_result_in_either_dialect(
    ended_so: ExecRecord, code: str
) -> None:
    with pytest.raises(Broken) as broken:
        end_of(ended_so)
    assert broken.value.fault.code == code
    with pytest.raises(SandboxdError) as refused:
        result_of(ended_so)
    assert refused.value.status == (400 if code == "invalid_argument" else 500)
    assert refused.value.mask


def test_a_deadline_is_told_as_the_commands_own() -> None:
    with pytest.raises(Broken) as broken:
        end_of(record(Outcome.TIMEOUT))
    assert broken.value.fault.code == "deadline_exceeded"


FORM = b'--xx\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n%s\r\n--xx--\r\n'


async def pieces(wire: bytes, size: int) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(wire), size):
        yield wire[start : start + size]


@pytest.mark.anyio
@pytest.mark.parametrize("content", [b"", b"x", b"\r\n--x\r\n--", bytes(range(256)) * 3])
async def test_an_upload_is_read_whole_in_whatever_pieces_it_comes(content: bytes) -> None:
    for size in (1, 2, 7, 4096):
        form = pieces(FORM % content, size)
        found = b"".join([piece async for piece in only_file(form, b"xx")])
        assert found == content


@pytest.mark.anyio
@pytest.mark.parametrize(
    "wire",
    [
        b"",
        FORM % b"cut",
        b"no form at all" * 2000,
        FORM.replace(b'name="file"', b'name="other"') % b"x",
    ],
)
async def test_an_upload_that_is_cut_or_of_another_form_is_refused(wire: bytes) -> None:
    wire = wire.removesuffix(b"\r\n--xx--\r\n")
    with pytest.raises(ValueError, match=r"."):
        [piece async for piece in only_file(pieces(wire, 100), b"xx")]


def test_the_boundary_is_what_the_header_says() -> None:
    assert boundary_of('multipart/form-data; boundary="a b"') == b"a b"
    assert boundary_of("multipart/form-data; boundary=ab; charset=x") == b"ab"
    with pytest.raises(ValueError, match="multipart"):
        boundary_of("application/json")


def test_input_that_is_sent_again_begins_where_it_began_before() -> None:
    session = Session()
    assert session.begin_of("a", taken=0) == 0
    assert session.begin_of("b", taken=5) == 5
    assert session.begin_of("a", taken=9) == 0
    assert session.begin_of("", taken=9) == 9
