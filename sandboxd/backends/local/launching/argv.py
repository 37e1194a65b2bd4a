"""What bubblewrap is told, word for word. Pure: a plan in, an argument list out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sandboxd.guest.inside import GUEST_INSIDE, KEPT_CAPABILITIES, SHARED_INSIDE, SOCKET_INSIDE

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


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
class ShownMount:
    """Something of the machine at a place of its own inside, which is made if it is missing."""

    source: str
    inside: str
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """One box, as bubblewrap must see it. Paths are those that bubblewrap's own user can reach.

    Every place inside that something is mounted on is there already, but for those of `mounts`.
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
    mounts: Sequence[ShownMount] = ()
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
        *("--chdir", "/", "--", GUEST_INSIDE, "serve", "--socket", SOCKET_INSIDE),
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
    for name in KEPT_CAPABILITIES:
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
    for mount in plan.mounts:
        words += ["--ro-bind" if mount.read_only else "--bind", mount.source, mount.inside]
    return [
        *words,
        *("--ro-bind", plan.guest, GUEST_INSIDE),
        *("--bind", plan.shared, SHARED_INSIDE),
    ]
