"""The system-call filter of a sandbox, as the bytes that the kernel takes. Pure."""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterator, Sequence

from sandboxd.errors import SandboxdError
from sandboxd.linux.syscall_numbers import ARCHITECTURES, Architecture
from sandboxd.linux.syscall_rules import (
    REFUSALS,
    Among,
    AnyBit,
    Condition,
    NotNull,
    Outside,
    Refusal,
)
from sandboxd.wire.codes import ErrorCode

# Classic BPF opcodes.
_LOAD_WORD = 0x20
_JUMP = 0x05
_JUMP_EQUAL = 0x15
_JUMP_AT_LEAST = 0x35
_JUMP_ANY_BIT = 0x45
_RETURN = 0x06

# Verdicts of a filter.
_ALLOW = 0x7FFF0000
_KILL_PROCESS = 0x80000000
_ERRNO = 0x00050000

# Offsets into `struct seccomp_data`; arguments are 64 bits wide, little-endian.
_NUMBER_AT = 0
_ARCH_AT = 4
_ARGUMENTS_AT = 16

_X32_BIT = 0x40000000


def filter_for_this_machine() -> bytes:
    """The filter for the running kernel. Raises `not_supported` on an architecture without one."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise SandboxdError(
            ErrorCode.NOT_SUPPORTED,
            f"the local backend has no system-call filter for {machine}; use the docker backend",
        )
    return build_filter(ARCHITECTURES[machine])


def build_filter(architecture: Architecture) -> bytes:
    """The filter as an array of `struct sock_filter`, 8 bytes each."""
    return b"".join(
        [
            *_check_architecture(architecture),
            *_refuse_always(architecture),
            *_refuse_by_arguments(architecture),
            _return(_ALLOW),
        ]
    )


def _check_architecture(architecture: Architecture) -> list[bytes]:
    """Kill what calls by another machine's table; leave the call's number loaded."""
    rules = [
        _load(_ARCH_AT),
        _instruction(_JUMP_EQUAL, k=architecture.audit, when_true=1),
        _return(_KILL_PROCESS),
        _load(_NUMBER_AT),
    ]
    if architecture.has_x32:
        rules += [
            _instruction(_JUMP_AT_LEAST, k=_X32_BIT, when_false=1),
            _refuse(errno.ENOSYS),
        ]
    return rules


def _refuse_always(architecture: Architecture) -> Iterator[bytes]:
    """Calls that are refused whatever their arguments."""
    for refusal in REFUSALS:
        if not refusal.when:
            known = (architecture.numbers.get(call) for call in refusal.calls)
            numbers = sorted(number for number in known if number is not None)
            # Over a jump past the refusal, and onto it from wherever a number matches.
            yield from _jumps_over(numbers, over=1)
            yield _instruction(_JUMP, k=1)
            yield _refuse(refusal.error)


def _refuse_by_arguments(architecture: Architecture) -> Iterator[bytes]:
    """Each call with all its refusals, and then its verdict: its number is no longer loaded."""
    calls: dict[str, list[Refusal]] = {}
    for refusal in REFUSALS:
        for call in refusal.calls if refusal.when else ():
            calls.setdefault(call, []).append(refusal)
    for call, refusals in calls.items():
        if (number := architecture.numbers.get(call)) is not None:
            rules = [rule for refusal in refusals for rule in _refuse_where(refusal)]
            yield _instruction(_JUMP_EQUAL, k=number, when_false=len(rules) + 1)
            yield from rules
            yield _return(_ALLOW)


def _refuse_where(refusal: Refusal) -> list[bytes]:
    """Refuse if all conditions hold, else fall through."""
    rules = [_refuse(refusal.error)]
    for condition in reversed(refusal.when):
        rules = [*_unless(condition, skip=len(rules)), *rules]
    return rules


def _unless(condition: Condition, *, skip: int) -> list[bytes]:
    """Jump over as many rules unless the condition holds."""
    match condition:
        case Among(argument, values):
            return [
                _load(_low(argument)),
                *_jumps_over(values, over=1),
                _instruction(_JUMP, k=skip),
            ]
        case Outside(argument, values):
            return [_load(_low(argument)), *_jumps_over(values, over=skip)]
        case AnyBit(argument, bits):
            return [
                _load(_low(argument)),
                _instruction(_JUMP_ANY_BIT, k=bits, when_false=skip),
            ]
        case NotNull(argument):
            return [
                _load(_low(argument)),
                _instruction(_JUMP_EQUAL, k=0, when_false=2),
                _load(_low(argument) + 4),
                _instruction(_JUMP_EQUAL, k=0, when_true=skip),
            ]


def _jumps_over(values: Sequence[int], *, over: int) -> list[bytes]:
    """Jump over as many rules behind these if what is loaded is one of the values."""
    return [
        _instruction(_JUMP_EQUAL, k=value, when_true=len(values) - place - 1 + over)
        for place, value in enumerate(values)
    ]


def _low(argument: int) -> int:
    return _ARGUMENTS_AT + 8 * argument


def _load(offset: int) -> bytes:
    return _instruction(_LOAD_WORD, k=offset)


def _refuse(error: int) -> bytes:
    return _return(_ERRNO | error)


def _return(verdict: int) -> bytes:
    return _instruction(_RETURN, k=verdict)


def _instruction(code: int, *, k: int, when_true: int = 0, when_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, when_true, when_false, k)
