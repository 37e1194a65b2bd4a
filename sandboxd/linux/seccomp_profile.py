"""The system-call filter of a sandbox, as the JSON that container engines take. Pure.

Their rules can only compare for equality under a mask, and only once per argument; so "none of
these" becomes all the masks that together match everything else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from sandboxd.linux.syscall_numbers import ARCHITECTURES
from sandboxd.linux.syscall_rules import (
    REFUSALS,
    Among,
    AnyBit,
    Condition,
    NotNull,
    Outside,
    Refusal,
)

_Rule = dict[str, Any]
_LOW_HALF = 0xFFFFFFFF
_BITS = 32


def profile_for(machine: str) -> str:
    """The profile for an engine on such a machine; empty where there is none, for the engine's."""
    architecture = ARCHITECTURES.get(machine)
    if architecture is None:
        return ""
    rules = [
        rule
        for refusal in REFUSALS
        for rule in _rules(
            refusal, [call for call in refusal.calls if call in architecture.numbers]
        )
    ]
    profile = {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [architecture.name],  # calls by another machine's table are fatal
        "syscalls": rules,
    }
    return json.dumps(profile, separators=(",", ":"))


def _rules(refusal: Refusal, calls: Sequence[str]) -> Iterator[_Rule]:
    """One for each way in which all conditions can hold."""
    for arguments in product(*map(_ways, refusal.when)):
        yield {
            "names": list(calls),
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": refusal.error,
            "args": list(arguments),
        }


def _ways(condition: Condition) -> list[_Rule]:
    """The comparisons of which one holds if and only if the condition does."""
    match condition:
        case Among(argument, values):
            return [_masked(argument, _LOW_HALF, value) for value in values]
        case Outside(argument, values):
            return [_masked(argument, mask, value) for mask, value in complement(values)]
        case AnyBit(argument, bits):
            places = (1 << place for place in range(_BITS))
            return [_masked(argument, bit, bit) for bit in places if bits & bit]
        case NotNull(argument):
            return [{"index": argument, "value": 0, "op": "SCMP_CMP_NE"}]


def _masked(argument: int, mask: int, value: int) -> _Rule:
    return {"index": argument, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def complement(values: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Masks and values of which exactly one matches every 32-bit number that is none of these."""
    open_ends = [(0, 0, frozenset(values))]
    while open_ends:
        mask, prefix, left = open_ends.pop()
        if not left:
            yield mask, prefix
        elif mask != _LOW_HALF:
            bit = (mask ^ _LOW_HALF).bit_length() - 1  # the highest that is not looked at yet
            for value in (0, 1 << bit):
                within = frozenset(each for each in left if each & (1 << bit) == value)
                open_ends.append((mask | 1 << bit, prefix | value, within))
