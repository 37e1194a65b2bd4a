"""The profile for engines and the filter for the kernel refuse the same calls."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.linux.seccomp_profile import complement, profile_for
from sandboxd.linux.syscall_numbers import X86_64
from tests.unit.linux.test_seccomp import ALLOW, verdict

PROFILE = json.loads(profile_for("x86_64"))
CALLS = sorted(X86_64.numbers)
INTERESTING = [
    *(0, 1, 2, 3, 8, 9, 10, 16, 17, 30, 38, 40, 0x80, 0x200, 0x5412, 0x541C, 0x5401),
    *(0x20000, 0x20008, 0x400000, 0x10000000, 0x3D0F00, 0xFFFFFFFF, 1 << 32, 0x1_0000_5412),
]
ARGUMENT = st.one_of(st.sampled_from(INTERESTING), st.integers(0, (1 << 64) - 1))


def holds(rule: dict[str, Any], arguments: list[int]) -> bool:
    """As the engine's library compares, on all 64 bits."""
    value = arguments[rule["index"]]
    match rule["op"]:
        case "SCMP_CMP_NE":
            return bool(value != rule["value"])
        case "SCMP_CMP_MASKED_EQ":
            return bool(value & rule["value"] == rule["valueTwo"])
        case operator:
            raise AssertionError(operator)


def refusals(call: str, arguments: list[int]) -> Iterator[int]:
    """The errors of all rules that match."""
    for rule in PROFILE["syscalls"]:
        if call in rule["names"] and all(holds(each, arguments) for each in rule["args"]):
            yield rule["errnoRet"]


@given(call=st.sampled_from(CALLS), arguments=st.lists(ARGUMENT, min_size=6, max_size=6))
def test_it_refuses_what_the_filter_refuses(call: str, arguments: list[int]) -> None:
    decided = verdict(X86_64, X86_64.numbers[call], *arguments)
    errors = set(refusals(call, arguments))
    if decided == ALLOW:
        assert errors == set()
    else:
        assert (decided & 0xFFFF) in errors


def test_no_argument_is_compared_twice_in_a_rule() -> None:
    """The engine's library would take them for alternatives."""
    for rule in PROFILE["syscalls"]:
        indexes = [each["index"] for each in rule["args"]]
        assert len(indexes) == len(set(indexes))


def test_threads_fall_back_from_a_call_that_no_filter_can_look_into() -> None:
    assert set(refusals("clone3", [0] * 6)) == {errno.ENOSYS}


@given(
    values=st.lists(st.integers(0, 0xFFFFFFFF), min_size=1, max_size=6, unique=True),
    number=st.integers(0, 0xFFFFFFFF),
)
def test_a_complement_matches_everything_else_once(values: list[int], number: int) -> None:
    masks = list(complement(values))
    for value in (number, *values, *(value ^ 1 for value in values)):
        matches = sum(value & mask == wanted for mask, wanted in masks)
        assert matches == (value not in values)


@pytest.mark.parametrize("machine", ["riscv64", ""])
def test_a_machine_without_a_table_has_no_profile(machine: str) -> None:
    assert profile_for(machine) == ""
