"""The numbers of system calls, by machine. A table of facts, from the kernel's own headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Architecture:
    """One machine: its audit number, and the numbers of the calls that filters look at.

    A call that it does not have is not in `numbers`. name: as container engines write it.
    """

    name: str
    audit: int
    has_x32: bool
    numbers: Mapping[str, int]


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
    "clone3": 435,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "open_tree_attr": 467,
}

X86_64 = Architecture(
    name="SCMP_ARCH_X86_64",
    audit=0xC000003E,
    has_x32=True,
    numbers={
        "ioctl": 16,
        "socket": 41,
        "socketpair": 53,
        "clone": 56,
        "ptrace": 101,
        "syslog": 103,
        "personality": 135,
        "setpriority": 141,
        "sched_setparam": 142,
        "sched_setscheduler": 144,
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
        "io_setup": 206,
        "lookup_dcookie": 212,
        "clock_settime": 227,
        "kexec_load": 246,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "ioprio_set": 251,
        "unshare": 272,
        "perf_event_open": 298,
        "fanotify_init": 300,
        "prlimit64": 302,
        "name_to_handle_at": 303,
        "open_by_handle_at": 304,
        "setns": 308,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "kcmp": 312,
        "finit_module": 313,
        "sched_setattr": 314,
        "kexec_file_load": 320,
        "bpf": 321,
        "userfaultfd": 323,
        **_UNIFIED,
    },
)

AARCH64 = Architecture(
    name="SCMP_ARCH_AARCH64",
    audit=0xC00000B7,
    has_x32=False,
    numbers={
        "io_setup": 0,
        "lookup_dcookie": 18,
        "ioctl": 29,
        "ioprio_set": 30,
        "umount2": 39,
        "mount": 40,
        "pivot_root": 41,
        "nfsservctl": 42,
        "vhangup": 58,
        "quotactl": 60,
        "acct": 89,
        "personality": 92,
        "unshare": 97,
        "kexec_load": 104,
        "init_module": 105,
        "delete_module": 106,
        "clock_settime": 112,
        "syslog": 116,
        "ptrace": 117,
        "sched_setparam": 118,
        "sched_setscheduler": 119,
        "setpriority": 140,
        "reboot": 142,
        "settimeofday": 170,
        "socket": 198,
        "socketpair": 199,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "clone": 220,
        "swapon": 224,
        "swapoff": 225,
        "perf_event_open": 241,
        "prlimit64": 261,
        "fanotify_init": 262,
        "name_to_handle_at": 264,
        "open_by_handle_at": 265,
        "setns": 268,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "kcmp": 272,
        "finit_module": 273,
        "sched_setattr": 274,
        "bpf": 280,
        "userfaultfd": 282,
        "kexec_file_load": 294,
        **_UNIFIED,
    },
)

ARCHITECTURES = {"x86_64": X86_64, "amd64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}
