"""What every sandbox has alike, whatever made it: the guest's places inside, and root's rights.

Knows no backend.
"""

from __future__ import annotations

GUEST_INSIDE = "/run/sandbox-guest"
SHARED_INSIDE = "/run/guest"
SOCKET_NAME = "s.sock"
SOCKET_INSIDE = f"{SHARED_INSIDE}/{SOCKET_NAME}"

# `sockaddr_un` holds 107 bytes; kernels add `-1` … `-5` to names beside the guest's socket.
MAX_SOCKET_PATH_BYTES = 99

# Variables that the guest's own runtime reads before the guest could look, and the prefix under
# which it is given an image's value of them for commands.
READ_BY_THE_GUEST = frozenset({"GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK"})
KEPT_ENV = "SANDBOX_GUEST_KEPT_"

# What a sandbox's root may still do. Nothing that mounts, traces, configures the network or loads
# code into the kernel.
KEPT_CAPABILITIES = (
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
)
