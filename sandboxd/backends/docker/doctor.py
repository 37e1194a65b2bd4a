"""What an engine and this machine can do for the docker backend, each gap with its mend.

For `sandboxd doctor` and the demo. Blocking; makes nothing.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from docker import APIClient

from sandboxd.backends.docker.engine import EngineRefused, address, connect, translated
from sandboxd.backends.docker.places import Places
from sandboxd.backends.docker.probing import (
    Info,
    Surroundings,
    capabilities_of,
    has_gpu,
    has_seccomp,
    is_rootless,
)
from sandboxd.backends.docker.reaching.choice import check_reach, way
from sandboxd.backends.docker.settings import DockerSettings
from sandboxd.backends.parts.findings import Finding, fine, gap
from sandboxd.backends.protocol import Capabilities, LimitKind
from sandboxd.errors import SandboxdError
from sandboxd.guest.binary import guest_binary
from sandboxd.guest.inside import MAX_SOCKET_PATH_BYTES
from sandboxd.guest.run_dir import default_run_dir
from sandboxd.linux.group_readings import mounted_hierarchies
from sandboxd.model.ids import new_id

MEND_ENGINE = (
    "start one (apt-get install docker.io), or name its address by DOCKER_HOST or "
    "`backend.docker.host`"
)
MEND_IMAGES = "`make images` builds sandboxd/base and sandboxd/python; `sandboxd prefetch` pulls"
# A pidfd, a kept line and two streams for each box; and the daemon's own.
_FDS_PER_BOX = 8
_FDS_OF_OURS = 256
_TASKS_PER_BOX = 20  # the guest, the engine's shim, and a command or two
_WANTED_DISK_BYTES = 5 << 30
_WANTED_LIMITS = ("memory", "pids", "cpu")


def probe(
    settings: DockerSettings, *, images: Collection[str] = (), max_sandboxes: int
) -> list[Finding]:
    """Look at everything; what cannot be looked at because of an earlier gap is left out.

    images: what templates name.
    """
    try:
        with closing(connect(settings.host, tls_dir=settings.tls_dir)) as api:
            return list(_engine(api, settings, images, max_sandboxes))
    except (SandboxdError, EngineRefused) as error:
        return [gap("engine", error.detail, MEND_ENGINE, vital=True)]


def _engine(
    api: APIClient, settings: DockerSettings, images: Collection[str], max_sandboxes: int
) -> Iterator[Finding]:
    info: Info = translated(api.info)
    yield _version(api, settings, info)
    yield _reach(settings, info)
    yield _guest(info)
    yield _socket_path(settings)
    yield from _capabilities(api, settings, info)
    yield _disk(info)
    yield _descriptors(max_sandboxes)
    yield from _machine(max_sandboxes)
    yield from (_image(api, name) for name in images)


def _version(api: APIClient, settings: DockerSettings, info: Info) -> Finding:
    facts = f"{info.get('OperatingSystem', 'unknown system')}, {info.get('Architecture', '')}"
    version = f"{info.get('ServerVersion', '?')} (API {api.api_version})"
    return fine("engine", f"{version} at {address(settings.host)}: {facts}")


def _reach(settings: DockerSettings, info: Info) -> Finding:
    """Whether guests can be reached, and told from impostors."""
    try:
        check_reach(settings, rootless=is_rootless(info))
    except SandboxdError as error:
        mend = "see docs/docker.md: as root or with a rootless engine; `pid: host` in a container"
        return gap("guests", error.detail.partition("; `sandboxd doctor`")[0], mend, vital=True)
    if way(settings) == "tcp":
        return fine("guests", "reached by TCP, so that every sandbox has a network")
    return fine("guests", "reached by sockets, and the engine's processes are in sight")


def _guest(info: Info) -> Finding:
    try:
        return fine("guest agent", str(guest_binary(str(info.get("Architecture", "")))))
    except SandboxdError as error:
        return gap("guest agent", error.detail, "make setup", vital=True)


def _socket_path(settings: DockerSettings) -> Finding:
    run_dir = settings.run_dir or default_run_dir(settings.installation)
    longest = len(os.fsencode(Places(run_dir=run_dir, home=settings.home).socket(new_id("box"))))
    detail = f"{run_dir}: {longest} of {MAX_SOCKET_PATH_BYTES} bytes"
    if longest > MAX_SOCKET_PATH_BYTES:
        return gap("socket paths", detail, "set a shorter run directory", vital=True)
    return fine("socket paths", detail)


def _capabilities(api: APIClient, settings: DockerSettings, info: Info) -> Iterator[Finding]:
    networks = {network["Name"] for network in translated(api.networks)}
    hierarchies = mounted_hierarchies(Path("/proc/self/mountinfo").read_text())
    surroundings = Surroundings(
        internet=(settings.network or "bridge") in networks,
        counts="memory" in hierarchies or "" in hierarchies,
        named=bool(settings.network),
    )
    found = capabilities_of(info, surroundings)
    yield _limits(found, info)
    yield _seccomp(info)
    yield fine("runtimes", ", ".join(sorted(found.runtimes)) or "only the engine's default")
    yield fine("networks", ", ".join(sorted(found.all_networks)))
    yield fine("gpu", "the engine gives GPUs" if has_gpu(info) else "none, `gpu` is refused")
    for note in found.notes:
        what, _, mend = note.partition(": ")
        if "filters no system calls" not in what:
            yield gap("note", what, mend)


def _limits(found: Capabilities, info: Info) -> Finding:
    loose = [name for name in _WANTED_LIMITS if found.limits[name] is not LimitKind.ENFORCED]
    version = f"control groups version {info.get('CgroupVersion', '1')}"
    if loose:
        mend = "give the engine these control groups"
        return gap("limits", f"{', '.join(loose)} not enforced ({version})", mend)
    return fine("limits", f"{', '.join(_WANTED_LIMITS)} enforced ({version}); disk watched")


def _seccomp(info: Info) -> Finding:
    if has_seccomp(info):
        return fine("seccomp", "system calls are filtered")
    return gap("seccomp", "system calls are not filtered", "an engine and a kernel with seccomp")


def _disk(info: Info) -> Finding:
    root = Path(str(info.get("DockerRootDir") or "/nonexistent"))
    if not root.is_dir():
        return fine("disk", f"{root} is not in sight from here")
    free = shutil.disk_usage(root).free
    detail = f"{free >> 20} MiB free where the engine keeps images and boxes ({root})"
    if free < _WANTED_DISK_BYTES:
        return gap("disk", detail, "make room, or set `backend.docker.image_disk_mb`")
    return fine("disk", detail)


def _descriptors(max_sandboxes: int) -> Finding:
    wanted = max_sandboxes * _FDS_PER_BOX + _FDS_OF_OURS
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    detail = f"{hard} at most; {max_sandboxes} sandboxes need {wanted}"
    if hard != resource.RLIM_INFINITY and hard < wanted:
        return gap("descriptors", detail, f"ulimit -Hn {wanted}, or a smaller max_sandboxes")
    return fine("descriptors", detail)


def _machine(max_sandboxes: int, *, switches: Path = Path("/proc/sys")) -> Iterator[Finding]:
    """Bounds of the kernel that stop an engine with words that name others. Of this machine: the
    engine's is mostly the same.
    """
    for name, per_box, files in (
        ("kernel keys", 1, ("kernel/keys/root_maxkeys",)),
        ("processes", _TASKS_PER_BOX, ("kernel/pid_max", "kernel/threads-max")),
    ):
        wanted = max_sandboxes * per_box
        bounds = {
            file.replace("/", "."): int((switches / file).read_text())
            for file in files
            if (switches / file).is_file()
        }
        most = min(bounds.values(), default=wanted)
        detail = f"{most} at most; {max_sandboxes} sandboxes need about {wanted}"
        if most < wanted:
            low = " ".join(f"{key}={wanted}" for key, bound in bounds.items() if bound < wanted)
            yield gap(name, detail, f"sysctl -w {low}, or a smaller max_sandboxes")
        else:
            yield fine(name, detail)


def _image(api: APIClient, name: str) -> Finding:
    try:
        found: dict[str, Any] = translated(api.inspect_image, name)
    except EngineRefused:
        return gap(f"image {name}", "not in the engine: pulled when first needed", MEND_IMAGES)
    return fine(f"image {name}", f"{int(found.get('Size', 0)) >> 20} MiB")
