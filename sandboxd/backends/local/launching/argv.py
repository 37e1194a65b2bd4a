"""What bubblewrap is told, word for word. Pure: a plan in, an argument list out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GUEST_INSIDE = "/run/sandbox-guest"
SHARED_INSIDE = "/run/guest"
_SOCKET_INSIDE = f"{SHARED_INSIDE}/s.sock"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# What a sandbox's root may still do within its own range of ids. Nothing that mounts, traces,
# configures the network or loads code into the kernel.
_KEPT_CAPABILITIES = (
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """One directory of a box, with what the box writes to it kept apart.

    sources: what lies under that, the lowest first.
    """

    sources: Sequence[str]
    upper: str
    work: str
    inside: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """One box, as bubblewrap must see it. Paths are those that bubblewrap's own user can reach.

    Every place inside that something is mounted on is there already.
    own_root: the directory that is `/` itself, None where an overlay is.
    read_only: (source, place inside), shown as they are.
    userns_fd: the user namespace to enter; None makes one that maps the caller alone to root.
    The other descriptors are bubblewrap's own options.
    """

    bwrap: str
    guest: str
    own_root: str | None
    overlays: Sequence[Overlay]
    read_only: Sequence[tuple[str, str]]
    shared: str
    shm_bytes: int
    userns_fd: int | None
    seccomp_fd: int
    info_fd: int
    status_fd: int
    block_fd: int
    guest_arguments: Sequence[str] = ()


def bwrap_argv(plan: LaunchPlan) -> list[str]:
    """The whole command line."""
    return [
        plan.bwrap,
        *_namespaces(plan.userns_fd),
        *_root(plan),
        *_system(plan),
        *_shown(plan),
        *("--seccomp", str(plan.seccomp_fd)),
        *("--info-fd", str(plan.info_fd)),
        *("--json-status-fd", str(plan.status_fd)),
        *("--block-fd", str(plan.block_fd)),
        *("--setenv", "PATH", _PATH),
        *("--chdir", "/", "--", GUEST_INSIDE, "serve", "--socket", _SOCKET_INSIDE),
        *plan.guest_arguments,
    ]


def trial_argv(
    *, bwrap: str, guest: str, userns_fd: int | None, overlays: Sequence[Overlay]
) -> list[str]:
    """A sandbox with all that a machine may refuse, in which the guest says its version."""
    return [
        bwrap,
        *_namespaces(userns_fd),
        *("--tmpfs", "/"),
        *_overlays(overlays),
        *("--proc", "/proc", "--dev", "/dev", "--ro-bind", guest, GUEST_INSIDE),
        *("--", GUEST_INSIDE, "version"),
    ]


def _namespaces(userns_fd: int | None) -> list[str]:
    words = ["--as-pid-1", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    words += ["--unshare-cgroup-try", "--hostname", "sandbox", "--cap-drop", "ALL"]
    if userns_fd is None:
        return [*words, "--unshare-user", "--uid", "0", "--gid", "0"]
    words += ["--userns", str(userns_fd)]
    for name in _KEPT_CAPABILITIES:
        words += ["--cap-add", f"CAP_{name}"]
    return words


def _root(plan: LaunchPlan) -> list[str]:
    words = [] if plan.own_root is None else ["--bind", plan.own_root, "/"]
    return [*words, *_overlays(plan.overlays)]


def _overlays(overlays: Sequence[Overlay]) -> list[str]:
    words = []
    for overlay in overlays:
        for source in overlay.sources:
            words += ["--overlay-src", source]
        words += ["--overlay", overlay.upper, overlay.work, overlay.inside]
    return words


def _system(plan: LaunchPlan) -> list[str]:
    """`/proc` with its switches closed, and a `/dev` in which no memory can be filled."""
    return [
        *("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"),
        *("--dev", "/dev"),
        *("--perms", "1777", "--size", str(plan.shm_bytes), "--tmpfs", "/dev/shm"),  # noqa: S108
        *("--remount-ro", "/dev"),
    ]


def _shown(plan: LaunchPlan) -> list[str]:
    words = []
    for source, place in plan.read_only:
        words += ["--ro-bind", source, place]
    return [
        *words,
        *("--ro-bind", plan.guest, GUEST_INSIDE),
        *("--bind", plan.shared, SHARED_INSIDE),
    ]
