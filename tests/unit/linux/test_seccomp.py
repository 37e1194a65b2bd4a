"""The filter, run through a small interpreter of what the kernel runs it through."""

from __future__ import annotations

import errno
import struct

import pytest

from sandboxd.linux.seccomp import build_filter
from sandboxd.linux.syscall_numbers import AARCH64, X86_64, Architecture
from sandboxd.linux.syscall_rules import REFUSALS

ALLOW = 0x7FFF0000
KILL = 0x80000000
MACHINES = pytest.mark.parametrize("machine", [X86_64, AARCH64], ids=["x86_64", "aarch64"])


def refused(error: int) -> int:
    return 0x00050000 | error


def verdict(machine: Architecture, number: int, *arguments: int, audit: int | None = None) -> int:
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<iIQ6Q", number, audit or machine.audit, 0, *padded)
    program = list(struct.iter_unpack("<HBBI", build_filter(machine)))
    accumulator, at = 0, 0
    while True:
        code, when_true, when_false, k = program[at]
        at += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, k)
            case 0x15:
                at += when_true if accumulator == k else when_false
            case 0x35:
                at += when_true if accumulator >= k else when_false
            case 0x45:
                at += when_true if accumulator & k else when_false
            case 0x05:
                at += k
            case 0x06:
                return int(k)
            case _:
                raise AssertionError(hex(code))


def denied(machine: Architecture) -> list[tuple[int, int]]:
    """Calls that are refused whatever their arguments, and with which error."""
    return [
        (machine.numbers[call], refusal.error)
        for refusal in REFUSALS
        if not refusal.when
        for call in refusal.calls
        if call in machine.numbers
    ]


@MACHINES
def test_another_machines_call_table_is_fatal(machine: Architecture) -> None:
    assert verdict(machine, 0, audit=0x40000003) == KILL


def test_x32_calls_do_not_exist() -> None:
    assert verdict(X86_64, 0x40000000 | 101) == refused(errno.ENOSYS)


@MACHINES
def test_every_denied_call_is_refused(machine: Architecture) -> None:
    for number, error in denied(machine):
        assert verdict(machine, number) == refused(error)


@MACHINES
def test_ordinary_calls_are_allowed(machine: Architecture) -> None:
    for number in set(range(460)) - set(machine.numbers.values()):
        assert verdict(machine, number) == ALLOW


@MACHINES
def test_threads_and_forks_are_allowed_and_namespaces_are_not(machine: Architecture) -> None:
    thread, fork = 0x3D0F00, 0x1200011
    assert verdict(machine, machine.numbers["clone"], thread) == ALLOW
    assert verdict(machine, machine.numbers["clone"], fork) == ALLOW
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(machine, machine.numbers["clone"], fork | flag) == refused(errno.EPERM)
        assert verdict(machine, machine.numbers["unshare"], flag) == refused(errno.EPERM)
    assert verdict(machine, machine.numbers["unshare"], 0x80) == refused(errno.EPERM)
    assert verdict(machine, machine.numbers["unshare"], 0x200) == ALLOW


@MACHINES
def test_clone3_does_not_exist_so_that_libraries_fall_back(machine: Architecture) -> None:
    assert verdict(machine, machine.numbers["clone3"]) == refused(errno.ENOSYS)


@MACHINES
def test_nothing_is_typed_into_a_terminal(machine: Architecture) -> None:
    assert verdict(machine, machine.numbers["ioctl"], 0, 0x5412) == refused(errno.EPERM)
    # The kernel looks at the low half alone.
    assert verdict(machine, machine.numbers["ioctl"], 0, 0x1_0000_5412) == refused(errno.EPERM)
    assert verdict(machine, machine.numbers["ioctl"], 0, 0x5401) == ALLOW


@MACHINES
def test_sockets_of_common_families_alone(machine: Architecture) -> None:
    for family in (1, 2, 10, 17):
        assert verdict(machine, machine.numbers["socket"], family, 1, 0) == ALLOW
    assert verdict(machine, machine.numbers["socket"], 16, 3, 0) == ALLOW
    assert verdict(machine, machine.numbers["socket"], 16, 3, 9) == refused(errno.EAFNOSUPPORT)
    for family in (38, 40):
        assert verdict(machine, machine.numbers["socket"], family, 1, 0) == refused(
            errno.EAFNOSUPPORT
        )


@MACHINES
def test_personality_may_be_asked_for_and_not_made_odd(machine: Architecture) -> None:
    assert verdict(machine, machine.numbers["personality"], 0xFFFFFFFF) == ALLOW
    assert verdict(machine, machine.numbers["personality"], 0x0400000) == refused(errno.EPERM)


@MACHINES
def test_limits_are_set_for_oneself_and_asked_of_anybody(machine: Architecture) -> None:
    pointer, high_half = 0x7FFF_0000, 0x7FFF_0000_0000
    assert verdict(machine, machine.numbers["prlimit64"], 0, 7, pointer, pointer) == ALLOW
    assert verdict(machine, machine.numbers["prlimit64"], 1, 7, 0, pointer) == ALLOW
    for new_limit in (pointer, high_half):
        assert verdict(machine, machine.numbers["prlimit64"], 1, 7, new_limit) == refused(
            errno.EPERM
        )
    # A name is 32 bits wide: its high half does not make it another one.
    assert verdict(machine, machine.numbers["prlimit64"], 1 << 32, 7, pointer) == ALLOW


@MACHINES
def test_priorities_are_set_for_oneself_alone(machine: Architecture) -> None:
    for number, user in ((machine.numbers["setpriority"], 2), (machine.numbers["ioprio_set"], 3)):
        assert verdict(machine, number, user - 2, 0, 5) == ALLOW
        assert verdict(machine, number, user - 2, 1, 19) == refused(errno.EPERM)
        assert verdict(machine, number, user, 0, 19) == refused(errno.EPERM)
    for call in ("sched_setparam", "sched_setscheduler", "sched_setattr"):
        number = machine.numbers[call]
        assert verdict(machine, number, 0, 5) == ALLOW
        # It seems to have been done, for those who set it for threads of their own.
        assert verdict(machine, number, 1, 5) == refused(0)


@MACHINES
def test_pairs_of_sockets_are_local_ones(machine: Architecture) -> None:
    assert verdict(machine, machine.numbers["socketpair"], 1, 1, 0) == ALLOW
    assert verdict(machine, machine.numbers["socketpair"], 30, 1, 0) == refused(errno.EAFNOSUPPORT)
