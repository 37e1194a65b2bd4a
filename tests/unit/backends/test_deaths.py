"""A verdict needs evidence; without it a death is unknown and masked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandboxd.backends.parts.deaths import Evidence, judge
from sandboxd.wire.codes import EndReason, Fault

MIB = 1 << 20


def killed(*, before: int, after: int, peak_mib: int) -> Evidence:
    return Evidence(
        box_id="b",
        exit_code=137,
        oom_kills=after,
        oom_kills_before=before,
        memory_peak_bytes=peak_mib * MIB,
        memory_limit_bytes=128 * MIB,
    )


def test_an_end_that_nobody_saw_is_unknown() -> None:
    death = judge(Evidence(box_id="b"))
    assert (death.reason, death.fault, death.mask) == (EndReason.DIED, Fault.UNKNOWN, True)


def test_a_kill_while_the_counter_rose_at_its_own_limit_is_the_agents_oom() -> None:
    death = judge(killed(before=0, after=1, peak_mib=128))
    assert (death.reason, death.fault, death.mask) == (EndReason.OOM, Fault.AGENT, False)


def test_a_kill_while_the_counter_rose_far_below_its_limit_is_the_hosts() -> None:
    death = judge(killed(before=0, after=1, peak_mib=20))
    assert (death.reason, death.fault, death.mask) == (EndReason.OOM, Fault.INFRA, True)


@pytest.mark.parametrize(
    ("hits", "fault", "mask"), [(5, Fault.INFRA, True), (6, Fault.AGENT, False)]
)
def test_where_the_kernel_counts_whose_limit_was_met_the_peak_says_nothing(
    hits: int, fault: Fault, mask: bool
) -> None:
    at_its_limit_once = killed(before=0, after=1, peak_mib=128)
    death = judge(replace(at_its_limit_once, limit_hits=hits, limit_hits_before=5))
    assert (death.reason, death.fault, death.mask) == (EndReason.OOM, fault, mask)


@pytest.mark.parametrize(("own", "fault"), [(True, Fault.AGENT), (False, Fault.INFRA)])
@pytest.mark.parametrize("group", ["gone", "at its limit", "far below it"])
def test_the_kernels_log_is_believed_before_any_counter(
    own: bool,
    fault: Fault,
    group: str,
) -> None:
    counted = {
        "gone": Evidence(box_id="b", exit_code=137),
        "at its limit": killed(before=0, after=1, peak_mib=128),
        "far below it": killed(before=0, after=1, peak_mib=20),
    }
    death = judge(replace(counted[group], at_own_limit=own))
    assert (death.reason, death.fault, death.mask) == (EndReason.OOM, fault, not own)
    assert death.evidence["oom_kills"] == 1


def test_an_old_oom_of_a_child_does_not_explain_a_later_kill() -> None:
    death = judge(killed(before=3, after=3, peak_mib=128))
    assert (death.reason, death.fault, death.mask) == (EndReason.DIED, Fault.UNKNOWN, True)


def test_another_signal_than_kill_came_from_inside() -> None:
    death = judge(Evidence(box_id="b", exit_code=128 + 32))
    assert (death.reason, death.fault, death.mask) == (EndReason.DIED, Fault.AGENT, False)
    assert death.evidence["signal"] == 32


@pytest.mark.parametrize("number", [6, 7, 11])
def test_a_first_process_that_crashed_may_have_done_so_by_a_mistake_of_ours(number: int) -> None:
    death = judge(Evidence(box_id="b", exit_code=128 + number, words="fatal error"))
    assert (death.reason, death.fault, death.mask) == (EndReason.DIED, Fault.UNKNOWN, True)
    assert "fatal error" in death.detail


def test_a_counter_alone_is_no_oom() -> None:
    death = judge(Evidence(box_id="b", exit_code=2, oom_kills=1, words="panic: …"))
    assert (death.reason, death.mask) == (EndReason.DIED, True)
    assert "panic" in death.detail


def test_an_image_whose_own_user_is_not_in_it_is_the_tasks_fault() -> None:
    death = judge(Evidence(box_id="b", exit_code=67, words='there is no user "app"'))
    assert (death.fault, death.mask) == (Fault.TASK, True)
    assert 'there is no user "app"' in death.detail


def test_an_engine_that_broke_is_the_cause_whatever_the_counters_say() -> None:
    death = judge(
        Evidence(
            box_id="box",
            exit_code=137,
            oom_kills=3,
            memory_peak_bytes=100,
            memory_limit_bytes=100,
            asked_signals=(9,),
            engine_broke=True,
        )
    )
    assert (death.reason, death.fault, death.mask) == (EndReason.NODE_LOST, Fault.INFRA, True)


def test_a_kill_that_somebody_asked_for_is_no_out_of_memory() -> None:
    death = judge(
        Evidence(
            box_id="box",
            exit_code=137,
            oom_kills=1,
            memory_peak_bytes=100,
            memory_limit_bytes=100,
            asked_signals=(15, 9),
        )
    )
    assert (death.reason, death.fault, death.mask) == (EndReason.DIED, Fault.UNKNOWN, True)
    assert "signal 9" in death.detail


def test_a_guest_that_ended_by_itself_is_believed_beside_a_broken_engine() -> None:
    death = judge(Evidence(box_id="box", exit_code=71, engine_broke=True, was_removed=True))
    assert death.reason is EndReason.EXPIRED


def test_a_harmless_signal_long_ago_explains_no_crash() -> None:
    death = judge(Evidence(box_id="box", exit_code=128 + 32, asked_signals=(10,)))
    assert (death.fault, death.mask) == (Fault.AGENT, False)
