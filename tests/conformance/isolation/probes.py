"""What an attacker tries, as Python text for inside. Each probe says in a line of JSON what it got:
`done`, or the name of the error. Nothing of the machine is written to: files are opened at most.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sandboxd.linux.syscall_numbers import ARCHITECTURES
from tests.contract.speaker import Speaker

_FRAME = """
import ctypes, errno, json, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = {numbers!r}[os.uname().machine]
def call(name, *arguments):
    ctypes.set_errno(0)
    wide = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    number = NUMBERS[name] if isinstance(name, str) else name
    if libc.syscall(ctypes.c_long(number), *wide) >= 0:
        return "done"
    return errno.errorcode.get(ctypes.get_errno(), "?")
def opened(path, flags=os.O_WRONLY):
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return errno.errorcode.get(error.errno, "?")
    return "done"
def attempt(probe):
    # A child each, so that what one gets no other has.
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = str(probe())
        except OSError as error:
            said = errno.errorcode.get(error.errno, "?")
        except BaseException as error:
            said = "broke: " + repr(error)
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    said = b""
    while piece := os.read(reader, 4096):
        said += piece
    os.waitpid(child, 0)
    return said.decode() or "killed"
def report(**probes):
    for name, probe in probes.items():
        print(json.dumps([name, attempt(probe)]), flush=True)
"""

# In namespaces of their own all of these are harmless, wherever they succeed.
CALLS = """
NEW = dict(user=0x10000000, mount=0x20000, pid=0x20000000, net=0x40000000, ipc=0x8000000,
           uts=0x4000000, cgroup=0x2000000, time=0x80)
def fork_into(flags):
    ctypes.set_errno(0)
    child = libc.syscall(ctypes.c_long(NUMBERS["clone"]), ctypes.c_long(flags | 17), 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    return "done" if child > 0 else errno.errorcode.get(ctypes.get_errno(), "?")
def made(mode, device):
    os.mknod("/tmp/probe-node", mode, device)
    os.unlink("/tmp/probe-node")
    return "done"
def renamed():
    ctypes.set_errno(0)
    said = libc.sethostname(b"probe", 5)
    return "done" if said == 0 else errno.errorcode.get(ctypes.get_errno(), "?")
report(
    mount=lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None),
    bind=lambda: call("mount", b"/tmp", b"/tmp", None, 4096, None),
    umount=lambda: call("umount2", b"/proc", 2),
    pivot_root=lambda: call("pivot_root", b"/", b"/"),
    **{f"unshare_{name}": (lambda flag: lambda: call("unshare", flag))(flag)
       for name, flag in NEW.items()},
    **{f"clone_{name}": (lambda flag: lambda: fork_into(flag))(flag)
       for name, flag in NEW.items() if name != "time"},
    setns=lambda: call("setns", os.open("/proc/self/ns/uts", 0), 0),
    trace_first=lambda: call("ptrace", 0x4206, 1, 0, 0),
    trace_parent=lambda: call("ptrace", 0x4206, os.getppid(), 0, 0),
    bpf=lambda: call("bpf", 0, (ctypes.c_uint32 * 32)(2, 4, 4, 1), 128),
    perf=lambda: call("perf_event_open", (ctypes.c_uint32 * 32)(1, 128, 1), 0, -1, -1, 0),
    aio=lambda: call("io_setup", 1, (ctypes.c_ulong * 1)()),
    io_uring=lambda: call("io_uring_setup", 8, (ctypes.c_uint32 * 64)()),
    userfaultfd=lambda: call("userfaultfd", 0),
    keyring_join=lambda: call("keyctl", 1, None, 0, 0, 0),
    keyring_read=lambda: call("keyctl", 0, -3, 1, 0, 0),
    key_add=lambda: call("add_key", b"user", b"probe", b"x", 1, -2),
    key_request=lambda: call("request_key", b"user", b"probe", None, -2),
    handle=lambda: call("open_by_handle_at", -100, (ctypes.c_uint32 * 8)(8, 1), 0),
    block_device=lambda: made(0o60600, os.makedev(8, 0)),
    char_device=lambda: made(0o20600, os.makedev(1, 1)),
    host_name=renamed,
    kernel_log=lambda: call("syslog", 3, ctypes.create_string_buffer(64), 64),
    packet_socket=lambda: call("socket", 17, 3, 3),
    raw_socket=lambda: call("socket", 2, 3, 1),
    vsock=lambda: call("socket", 40, 1, 0),
    alg_socket=lambda: call("socket", 38, 5, 0),
    audit_socket=lambda: call("socket", 16, 3, 9),
    read_implies_exec=lambda: call("personality", 0x0400000),
    limits_of_first=lambda: call("prlimit64", 1, 7, (ctypes.c_ulong * 2)(64, 64), None),
    turn_of_first=lambda: call("setpriority", 0, 1, 19),
)
"""

OPENS = """
switches = ["kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "kernel/printk",
            "kernel/sysrq", "vm/drop_caches", "vm/overcommit_memory", "fs/file-max"]
report(
    **{f"/proc/sys/{name}": (lambda name: lambda: opened(f"/proc/sys/{name}"))(name)
       for name in switches},
    **{path: (lambda path: lambda: opened(path))(path) for path in
       ["/proc/sysrq-trigger", "/proc/1/mem", "/proc/mtrr", "/run/sandbox-guest",
        "/proc/irq/default_smp_affinity", "/sys/kernel/uevent_helper", "/sys/power/state",
        "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/class/net/lo/mtu"]},
    **{path + " read": (lambda path: lambda: opened(path, os.O_RDONLY))(path) for path in
       ["/proc/kcore", "/proc/kmsg", "/proc/1/mem", "/proc/1/environ", "/proc/1/maps",
        "/proc/1/root/etc", "/dev/mem", "/dev/kmsg", "/dev/kvm", "/dev/fuse", "/dev/net/tun",
        "/proc/1/fd/0", "/dev/sda", "/dev/vda", "/dev/nvme0n1", "/dev/loop0", "/dev/loop-control",
        "/dev/mapper"]},
)
"""

# Everything below a folder of switches that opens for writing; looks at no more than so many.
WRITABLE = """
import itertools
def walk():
    for top in TOPS:
        for place, folders, files in os.walk(top):
            for name in files:
                yield os.path.join(place, name)
found = [path for path in itertools.islice(walk(), 30000) if opened(path) == "done"]
print(json.dumps(found))
"""


def run(box: Speaker, code: str, **fields: Any) -> str:
    """Python text in a sandbox; what it wrote."""
    done = box.exec(["python3", "-c", text_of(code)], timeout_s=50, **fields)
    assert done["exit_code"] == 0, done
    return str(done["stdout"])


def text_of(code: str) -> str:
    """A probe as a whole program."""
    numbers = {name: dict(each.numbers) for name, each in ARCHITECTURES.items()}
    return _FRAME.replace("{numbers!r}", repr(numbers)) + code


def results(written: str) -> Mapping[str, str]:
    """What each probe of a program got."""
    return dict(json.loads(line) for line in written.splitlines())
