"""Which system calls a sandbox is refused, in a form that every kind of filter is made from. Pure.

A deny list: what reaches past the sandbox (mounts, namespaces, other processes' memory, the
kernel's own machinery) answers EPERM, and all else is allowed. `clone3` answers ENOSYS, because a
filter cannot look into its argument; every C library then falls back to `clone`. So does
`io_setup`: a kernel may lack it.

Limits and priorities a process may set for itself alone: the guest belongs to the same user as the
commands of a sandbox's root, who could else take its memory, its descriptors or its turn.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

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

_SEEMS_DONE = 0  # as an error: the call does nothing and answers success

_PRIO_USER = 2
_IOPRIO_USER = 3

# What container engines let a process set: Linux, UNAME26 with and without Linux32, and "ask".
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Among:
    """The low half of an argument is one of these."""

    argument: int
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outside:
    """The low half of an argument is none of these."""

    argument: int
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AnyBit:
    """The low half of an argument has one of these bits."""

    argument: int
    bits: int


@dataclass(frozen=True, slots=True)
class NotNull:
    """An argument, all 64 bits of it, is not 0."""

    argument: int


# The kernel looks at the low half of what is a number to it, and at all of what is a pointer.
Condition = Among | Outside | AnyBit | NotNull


@dataclass(frozen=True, slots=True)
class Refusal:
    """Calls that answer an error: always, or where all conditions hold at once. error 0: they do
    nothing and answer success.
    """

    calls: tuple[str, ...]
    error: int
    when: tuple[Condition, ...] = ()


REFUSALS = (
    Refusal(("clone3",), errno.ENOSYS),
    # What it may hold is counted for the whole machine together, and one process could have it all.
    Refusal(("io_setup",), errno.ENOSYS),
    Refusal(
        (
            "acct",
            "add_key",
            "bpf",
            "clock_settime",
            "delete_module",
            "fanotify_init",
            "finit_module",
            "fsconfig",
            "fsmount",
            "fsopen",
            "fspick",
            "init_module",
            "io_uring_enter",
            "io_uring_register",
            "io_uring_setup",
            "ioperm",
            "iopl",
            "kcmp",
            "kexec_file_load",
            "kexec_load",
            "keyctl",
            "lookup_dcookie",
            "mount",
            "mount_setattr",
            "move_mount",
            "name_to_handle_at",
            "nfsservctl",
            "open_by_handle_at",
            "open_tree",
            "open_tree_attr",
            "perf_event_open",
            "pidfd_getfd",
            "pivot_root",
            "process_vm_readv",
            "process_vm_writev",
            "ptrace",
            "quotactl",
            "quotactl_fd",
            "reboot",
            "request_key",
            "setns",
            "settimeofday",
            "swapoff",
            "swapon",
            "syslog",
            "umount2",
            "userfaultfd",
            "vhangup",
        ),
        errno.EPERM,
    ),
    Refusal(("clone",), errno.EPERM, (AnyBit(0, _NEW_NAMESPACES),)),
    Refusal(("unshare",), errno.EPERM, (AnyBit(0, _NEW_NAMESPACES | _NEW_TIME),)),
    Refusal(("personality",), errno.EPERM, (Outside(0, _PERSONALITIES),)),
    Refusal(("ioctl",), errno.EPERM, (Among(1, (_TIOCSTI, _TIOCLINUX)),)),
    # The common families only, and of netlink not the audit protocol, which is told as a kernel
    # without it tells it: on any other refusal `useradd` and its kin give up.
    Refusal(("socket",), errno.EAFNOSUPPORT, (Outside(0, _SOCKET_FAMILIES),)),
    Refusal(
        ("socket",),
        errno.EAFNOSUPPORT,
        (Among(0, (_NETLINK,)), Among(2, (_NETLINK_AUDIT,))),
    ),
    Refusal(("socketpair",), errno.EAFNOSUPPORT, (Outside(0, (_UNIX,)),)),
    # Set by nobody but the process itself, by the name 0; others' may be asked for.
    Refusal(("prlimit64",), errno.EPERM, (Outside(0, (0,)), NotNull(2))),
    # Set by a process for itself or its group, by the name 0; never for all of a user's.
    Refusal(("setpriority", "ioprio_set"), errno.EPERM, (Outside(1, (0,)),)),
    Refusal(("setpriority",), errno.EPERM, (Among(0, (_PRIO_USER,)),)),
    Refusal(("ioprio_set",), errno.EPERM, (Among(0, (_IOPRIO_USER,)),)),
    # Threads of a process have names of their own, which a filter cannot tell from others'.
    # Libraries that set the policy of a thread they have just made, to what it is already, abort on
    # an error (ZeroMQ, and so every Jupyter kernel): to them it seems to have been done.
    Refusal(
        ("sched_setparam", "sched_setscheduler", "sched_setattr"),
        _SEEMS_DONE,
        (Outside(0, (0,)),),
    ),
)
