"""What this machine can do for the local backend, each gap with its mend. For `sandboxd doctor`.

Blocking, and makes only what it takes away again.
"""

from __future__ import annotations

import os
import resource
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sandboxd.backends.local.boxes import BoxPlaces, short_way
from sandboxd.backends.local.launching.roots import host_root
from sandboxd.backends.local.launching.stage import Stage
from sandboxd.backends.local.launching.trial import try_bwrap
from sandboxd.backends.local.opening import LocalSettings, open_shelf, open_stage, tidy
from sandboxd.backends.parts.findings import Finding, fine, gap
from sandboxd.errors import SandboxdError
from sandboxd.guest.binary import guest_binary
from sandboxd.guest.inside import MAX_SOCKET_PATH_BYTES
from sandboxd.guest.run_dir import default_run_dir
from sandboxd.linux.cgroups import Cgroups, find_cgroups
from sandboxd.model.ids import new_id

# A pidfd, a socket or two, and a kernel's five channels for each box; and the daemon's own.
_FDS_PER_BOX = 8
_FDS_OF_OURS = 256
# First process, outer bubblewrap and the threads of the guest.
_TASKS_PER_BOX = 40
_WANTED_DISK_BYTES = 5 << 30
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")


def probe(settings: LocalSettings, *, max_sandboxes: int) -> list[Finding]:
    """Look at everything; what cannot be looked at because of an earlier gap is left out."""
    findings = [
        _namespaces_allowed(),
        _guest(),
        _descriptors(max_sandboxes),
        _tasks(max_sandboxes),
        _inotify(),
    ]
    findings.append(_socket_path(settings.run_dir or default_run_dir(settings.installation)))
    # An installation of our own: a daemon may be at work in the one that is asked about.
    ours = replace(settings, installation=f"doctor{os.getpid()}", run_dir=None)
    missing = [
        path for path in (settings.state_dir / "boxes", settings.state_dir) if not path.exists()
    ]
    try:
        shelf, run_dir = open_shelf(ours)
    except SandboxdError as error:
        mend = "choose other directories with --state-dir"
        return [*findings, gap("directories", error.detail, mend, vital=True)]
    cgroups = find_cgroups(ours.level)
    try:
        findings += [_disk(shelf.boxes_dir), _cgroups(cgroups)]
        findings += _bubblewrap(ours, run_dir, shelf.boxes_dir)
    finally:
        tidy(shelf, cgroups, run_dir)
        for path in missing:
            path.rmdir()
    return findings


def _namespaces_allowed() -> Finding:
    """The switches by which systems forbid user namespaces."""
    name = "user namespaces"
    if _switch("user/max_user_namespaces") == "0":
        mend = "sysctl -w user.max_user_namespaces=10000"
        return gap(name, "user.max_user_namespaces is 0", mend, vital=True)
    if os.geteuid() != 0 and _switch("kernel/unprivileged_userns_clone") == "0":
        mend = "sysctl -w kernel.unprivileged_userns_clone=1"
        return gap(name, "ordinary users may not make them", mend, vital=True)
    if os.geteuid() != 0 and _switch("kernel/apparmor_restrict_unprivileged_userns") == "1":
        mend = "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or run as root"
        return gap(name, "AppArmor keeps ordinary users from them", mend, vital=True)
    return fine(name, "allowed")


def _switch(name: str) -> str:
    """A kernel setting; "" where the kernel has none of that name."""
    with suppress(OSError):
        return Path("/proc/sys", name).read_text().strip()
    return ""


def _guest() -> Finding:
    try:
        return fine("guest agent", str(guest_binary()))
    except SandboxdError as error:
        return gap("guest agent", error.detail, "make setup", vital=True)


def _descriptors(max_sandboxes: int) -> Finding:
    wanted = max_sandboxes * _FDS_PER_BOX + _FDS_OF_OURS
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    detail = f"{hard} at most; {max_sandboxes} sandboxes need {wanted}"
    if hard != resource.RLIM_INFINITY and hard < wanted:
        return gap("descriptors", detail, f"ulimit -Hn {wanted}, or a smaller max_sandboxes")
    return fine("descriptors", detail)


def _tasks(max_sandboxes: int) -> Finding:
    wanted = max_sandboxes * _TASKS_PER_BOX
    bounds = [
        int(text) for text in (_switch("kernel/pid_max"), _switch("kernel/threads-max")) if text
    ]
    _, own = resource.getrlimit(resource.RLIMIT_NPROC)
    if own != resource.RLIM_INFINITY and os.geteuid() != 0:
        bounds.append(own)
    most = min(bounds, default=wanted)
    detail = f"{most} at most; {max_sandboxes} sandboxes need about {wanted}"
    if most < wanted:
        mend = f"sysctl -w kernel.pid_max={wanted} kernel.threads-max={wanted}, ulimit -u {wanted}"
        return gap("processes", detail, mend)
    return fine("processes", detail)


def _inotify() -> Finding:
    """All sandboxes count as one user outside, so they share what that user may have."""
    instances = int(_switch("fs/inotify/max_user_instances") or 0)
    detail = f"{instances} instances, shared by all sandboxes"
    if instances < 1024:
        return gap("inotify", detail, "sysctl -w fs.inotify.max_user_instances=8192")
    return fine("inotify", detail)


def _socket_path(run_dir: Path) -> Finding:
    longest = len(os.fsencode(BoxPlaces(run_dir, short_way(run_dir) / new_id("box")).socket))
    detail = f"{run_dir}: {longest} of {MAX_SOCKET_PATH_BYTES} bytes"
    if longest > MAX_SOCKET_PATH_BYTES:
        return gap("socket paths", detail, "set a shorter run directory", vital=True)
    return fine("socket paths", detail)


def _disk(boxes_dir: Path) -> Finding:
    free = shutil.disk_usage(boxes_dir).free
    detail = f"{free >> 20} MiB free where sandboxes write ({boxes_dir})"
    if free < _WANTED_DISK_BYTES:
        return gap("disk", detail, "make room, or choose another --state-dir")
    return fine("disk", detail)


def _cgroups(cgroups: Cgroups) -> Finding:
    if cgroups.version != "none":
        return fine("control groups", cgroups.detail)
    return gap(
        "control groups",
        f"none may be made, so memory and cpu are not limited: {cgroups.detail}",
        "run as root, or as a systemd unit with Delegate=yes and DelegateSubgroup=daemon",
    )


def _bubblewrap(settings: LocalSettings, run_dir: Path, boxes_dir: Path) -> list[Finding]:
    """What only a trial can tell."""
    try:
        stage = open_stage(settings, run_dir, guest_binary())
    except SandboxdError as error:
        return [gap("bubblewrap", error.detail, _mend_for_rights(), vital=True)]
    try:
        # A thread of its own, since standing on the stage changes a thread for good.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_try_on_stage, stage, boxes_dir).result()
    finally:
        stage.close()


def _try_on_stage(stage: Stage, boxes_dir: Path) -> list[Finding]:
    try:
        stage.enter()
    except OSError as error:
        detail = f"no mount namespace of our own: {error}"
        return [gap("bubblewrap", detail, _mend_for_rights(), vital=True)]
    if complaint := try_bwrap(stage, boxes_dir, overlay=False):
        return [gap("bubblewrap", complaint, _mend_for_rights(), vital=True)]
    complaint = try_bwrap(stage, boxes_dir, overlay=True)
    root = host_root(stage, can_overlay=not complaint)
    return [fine("bubblewrap", stage.bwrap), _overlay(complaint), _notes(root.notes)]


def _overlay(complaint: str) -> Finding:
    if not complaint:
        return fine("overlay", "works in a user namespace")
    mend = "Linux 5.11 or newer, and a --state-dir on ext4, xfs, btrfs or tmpfs"
    return gap("overlay", complaint, mend)


def _notes(notes: tuple[str, ...]) -> Finding:
    return fine("host image", "; ".join(notes))


def _mend_for_rights() -> str:
    if any(map(os.path.exists, _CONTAINER_MARKS)):
        return "in a container: start it with --privileged, or use the docker backend"
    return "let this user make user and mount namespaces, or use the docker backend"
