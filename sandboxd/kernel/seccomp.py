"""The system-call filter of a sandbox, as the bytes that the kernel takes. Pure; knows no process.

A deny list: what reaches past the sandbox (mounts, namespaces, other processes' memory, the
kernel's own machinery) answers EPERM, and all else is allowed. `clone3` answers ENOSYS, because a
filter cannot look into its argument; every C library then falls back to `clone`.

Limits and priorities a process may set for itself alone: the guest belongs to the same user as the
commands of a sandbox's root, who could else take its memory, its descriptors or its turn.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

# Classic BPF opcodes.
_LOAD_WORD = 0x20
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

# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET together; NEWTIME only counts
# in `unshare`, since `clone` reads those low bits as the exit signal.
_NEW_NAMESPACES = 0x7E020000
_NEW_TIME = 0x80

_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C

_UNIX = 1
_NETLINK = 16
_NETLINK_AUDIT = 9
_SOCKET_FAMILIES = (0, 1, 2, 10, _NETLINK, 17)  # unspecified, unix, inet, inet6, netlink, packet

_PRIO_USER = 2
_IOPRIO_USER = 3

# What container engines let a process set: Linux, UNAME26 with and without Linux32, and "ask".
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Architecture:
    """One machine: its audit number, and the numbers of the calls that the filter looks at."""

    audit: int
    denied: Mapping[str, int]
    clone: int
    clone3: int
    unshare: int
    personality: int
    ioctl: int
    socket: int
    socketpair: int
    prlimit64: int
    setpriority: int
    ioprio_set: int
    scheduling: tuple[int, ...]  # sched_setparam, sched_setscheduler, sched_setattr
    has_x32: bool


# Numbers that are the same everywhere: calls newer than the unified table.
_UNIFIED = {
    "pidfd_getfd": 438,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "open_tree_attr": 467,
}

X86_64 = Architecture(
    audit=0xC000003E,
    denied={
        "ptrace": 101,
        "syslog": 103,
        "vhangup": 153,
        "pivot_root": 155,
        "acct": 163,
        "settimeofday": 164,
        "mount": 165,
        "umount2": 166,
        "swapon": 167,
        "swapoff": 168,
        "reboot": 169,
        "iopl": 172,
        "ioperm": 173,
        "init_module": 175,
        "delete_module": 176,
        "quotactl": 179,
        "nfsservctl": 180,
        "lookup_dcookie": 212,
        "clock_settime": 227,
        "kexec_load": 246,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "perf_event_open": 298,
        "fanotify_init": 300,
        "name_to_handle_at": 303,
        "open_by_handle_at": 304,
        "setns": 308,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "kcmp": 312,
        "finit_module": 313,
        "kexec_file_load": 320,
        "bpf": 321,
        "userfaultfd": 323,
        **_UNIFIED,
    },
    clone=56,
    clone3=435,
    unshare=272,
    personality=135,
    ioctl=16,
    socket=41,
    socketpair=53,
    prlimit64=302,
    setpriority=141,
    ioprio_set=251,
    scheduling=(142, 144, 314),
    has_x32=True,
)

AARCH64 = Architecture(
    audit=0xC00000B7,
    denied={
        "lookup_dcookie": 18,
        "umount2": 39,
        "mount": 40,
        "pivot_root": 41,
        "nfsservctl": 42,
        "vhangup": 58,
        "quotactl": 60,
        "acct": 89,
        "kexec_load": 104,
        "init_module": 105,
        "delete_module": 106,
        "clock_settime": 112,
        "syslog": 116,
        "ptrace": 117,
        "reboot": 142,
        "settimeofday": 170,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "swapon": 224,
        "swapoff": 225,
        "perf_event_open": 241,
        "fanotify_init": 262,
        "name_to_handle_at": 264,
        "open_by_handle_at": 265,
        "setns": 268,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "kcmp": 272,
        "finit_module": 273,
        "bpf": 280,
        "userfaultfd": 282,
        "kexec_file_load": 294,
        **_UNIFIED,
    },
    clone=220,
    clone3=435,
    unshare=97,
    personality=92,
    ioctl=29,
    socket=198,
    socketpair=199,
    prlimit64=261,
    setpriority=140,
    ioprio_set=30,
    scheduling=(118, 119, 274),
    has_x32=False,
)

_MACHINES = {"x86_64": X86_64, "aarch64": AARCH64}


def filter_for_this_machine() -> bytes:
    """The filter for the running kernel. Raises `not_supported` on an architecture without one."""
    machine = platform.machine()
    if machine not in _MACHINES:
        raise SandboxdError(
            ErrorCode.NOT_SUPPORTED,
            f"the local backend has no system-call filter for {machine}; use the docker backend",
        )
    return build_filter(_MACHINES[machine])


def build_filter(architecture: Architecture) -> bytes:
    """The filter as an array of `struct sock_filter`, 8 bytes each."""
    return b"".join(
        [
            *_check_architecture(architecture),
            *_deny_equal([architecture.clone3], errno.ENOSYS),
            *_deny_equal(sorted(architecture.denied.values()), errno.EPERM),
            *_for_call(architecture.clone, [*_deny_bits(0, _NEW_NAMESPACES), _allow()]),
            *_for_call(
                architecture.unshare, [*_deny_bits(0, _NEW_NAMESPACES | _NEW_TIME), _allow()]
            ),
            *_for_call(architecture.personality, _only(0, _PERSONALITIES, errno.EPERM)),
            *_for_call(
                architecture.ioctl,
                [_load(1), *_deny_equal([_TIOCSTI, _TIOCLINUX], errno.EPERM), _allow()],
            ),
            *_for_call(architecture.socket, _socket_rules()),
            *_for_call(architecture.socketpair, _only(0, (_UNIX,), errno.EAFNOSUPPORT)),
            *_for_call(architecture.prlimit64, _own_limits()),
            *_for_call(architecture.setpriority, _own_priority(_PRIO_USER)),
            *_for_call(architecture.ioprio_set, _own_priority(_IOPRIO_USER)),
            *(
                rule
                for number in architecture.scheduling
                for rule in _for_call(number, _only(0, (0,), errno.EPERM))
            ),
            _allow(),
        ]
    )


def _instruction(code: int, *, k: int, when_true: int = 0, when_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, when_true, when_false, k)


def _return(verdict: int) -> bytes:
    return _instruction(_RETURN, k=verdict)


def _allow() -> bytes:
    return _return(_ALLOW)


def _load(argument: int) -> bytes:
    """Load the low half of an argument; the kernel ignores the high half of the ones we look at."""
    return _instruction(_LOAD_WORD, k=_ARGUMENTS_AT + 8 * argument)


def _check_architecture(architecture: Architecture) -> list[bytes]:
    """Kill what calls by another machine's table; leave the call's number loaded."""
    rules = [
        _instruction(_LOAD_WORD, k=_ARCH_AT),
        _instruction(_JUMP_EQUAL, k=architecture.audit, when_true=1),
        _return(_KILL_PROCESS),
        _instruction(_LOAD_WORD, k=_NUMBER_AT),
    ]
    if architecture.has_x32:
        rules += [
            _instruction(_JUMP_AT_LEAST, k=_X32_BIT, when_false=1),
            _return(_ERRNO | errno.ENOSYS),
        ]
    return rules


def _deny_equal(values: list[int], error: int) -> list[bytes]:
    """Refuse if what is loaded is one of the values, else fall through."""
    return [
        *(
            _instruction(_JUMP_EQUAL, k=value, when_true=len(values) - place)
            for place, value in enumerate(values)
        ),
        _instruction(0x05, k=1),  # none of them: over the refusal
        _return(_ERRNO | error),
    ]


def _deny_bits(argument: int, bits: int) -> list[bytes]:
    return [
        _load(argument),
        _instruction(_JUMP_ANY_BIT, k=bits, when_false=1),
        _return(_ERRNO | errno.EPERM),
    ]


def _only(argument: int, values: tuple[int, ...], error: int) -> list[bytes]:
    """Allow these values of an argument, refuse all others."""
    return [
        _load(argument),
        *(
            _instruction(_JUMP_EQUAL, k=value, when_true=len(values) - place)
            for place, value in enumerate(values)
        ),
        _return(_ERRNO | error),
        _allow(),
    ]


def _socket_rules() -> list[bytes]:
    """The common families only, and of netlink not the audit protocol."""
    families = _only(0, _SOCKET_FAMILIES, errno.EAFNOSUPPORT)
    audit = [_load(2), *_deny_equal([_NETLINK_AUDIT], errno.EPERM), _allow()]
    return [
        _load(0),
        _instruction(_JUMP_EQUAL, k=_NETLINK, when_false=len(audit)),
        *audit,
        *families,
    ]


def _own_limits() -> list[bytes]:
    """Set by nobody but the process itself, by the name 0; others' may be asked for."""
    return [
        _load(0),
        _instruction(_JUMP_EQUAL, k=0, when_true=4),
        _load(2),  # the new limit, a pointer: both halves count
        _instruction(_JUMP_EQUAL, k=0, when_false=3),
        _instruction(_LOAD_WORD, k=_ARGUMENTS_AT + 8 * 2 + 4),
        _instruction(_JUMP_EQUAL, k=0, when_false=1),
        _allow(),
        _return(_ERRNO | errno.EPERM),
    ]


def _own_priority(user: int) -> list[bytes]:
    """Set by a process for itself or its group, by the name 0; never for all of a user's."""
    return [
        _load(1),
        _instruction(_JUMP_EQUAL, k=0, when_false=3),
        _load(0),
        _instruction(_JUMP_EQUAL, k=user, when_true=1),
        _allow(),
        _return(_ERRNO | errno.EPERM),
    ]


def _for_call(number: int, rules: list[bytes]) -> list[bytes]:
    """Apply rules, which end in a verdict, to one call; the number stays loaded for the others."""
    return [_instruction(_JUMP_EQUAL, k=number, when_false=len(rules)), *rules]
