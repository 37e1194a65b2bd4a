"""Opens the docker backend: asks the engine what it can do, and puts the parts together."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
from anyio import to_thread

from sandboxd.backends.docker.backend import DockerBackend
from sandboxd.backends.docker.census import Census
from sandboxd.backends.docker.disk_watch import DiskWatch
from sandboxd.backends.docker.engine import Engine, EngineRefused, address, open_engine
from sandboxd.backends.docker.host_paths import HostPaths
from sandboxd.backends.docker.imaging import DockerImages, ImageSettings, open_images
from sandboxd.backends.docker.judging import Judge
from sandboxd.backends.docker.living import FindGroup, Roster
from sandboxd.backends.docker.making import Ground, Maker
from sandboxd.backends.docker.networks import Networks
from sandboxd.backends.docker.places import Places
from sandboxd.backends.docker.probing import (
    Info,
    Surroundings,
    box_owner,
    capabilities_of,
    has_seccomp,
    is_rootless,
)
from sandboxd.backends.docker.reaching import SocketReach
from sandboxd.backends.docker.records import BoxRecord
from sandboxd.backends.docker.refusals import call_refused
from sandboxd.backends.docker.removing import Remover
from sandboxd.backends.docker.settings import DockerSettings
from sandboxd.backends.docker.watching import EventWatch
from sandboxd.errors import SandboxdError
from sandboxd.guest.binary import guest_binary
from sandboxd.guest.run_dir import open_run_dir
from sandboxd.kernel.group_readings import Group, group_of, mounted_hierarchies
from sandboxd.kernel.seccomp_profile import profile_for
from sandboxd.wire.codes import ErrorCode

_UNIX = "unix://"
_CLOSING_S = 10.0


@asynccontextmanager
async def open_docker(settings: DockerSettings) -> AsyncIterator[DockerBackend]:
    """The backend, ready to make boxes. On leaving, boxes live on; only our watch of them ends.

    Raises `backend_unavailable`, naming the mend, or `not_supported`.
    """
    engine = await open_engine(settings.host)
    try:
        async with _opened(engine, settings) as backend:
            yield backend
    finally:
        with anyio.move_on_after(_CLOSING_S, shield=True):
            await engine.aclose()


@asynccontextmanager
async def _opened(engine: Engine, settings: DockerSettings) -> AsyncIterator[DockerBackend]:
    info = await _ask(engine)
    await to_thread.run_sync(check_reach, address(settings.host), is_rootless(info))
    places, guest = await to_thread.run_sync(_open_places, settings, info)
    networks = Networks(engine, settings)
    hierarchies = await to_thread.run_sync(_hierarchies)
    internet = await networks.offers_internet()
    ground = Ground(
        installation=settings.installation,
        tag=settings.tag,
        places=places,
        guest=guest,
        seccomp=profile_for(str(info.get("Architecture", ""))) if has_seccomp(info) else "",
        paths=HostPaths(),
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_close, networks, places)
        images = await stack.enter_async_context(_images(engine, settings))
        roster, judge = await stack.enter_async_context(
            _watched(engine, settings, lambda record: _group(record, hierarchies))
        )
        reach = SocketReach(places)
        remover = Remover(engine, roster, places, installation=settings.installation)
        yield DockerBackend(
            maker=Maker(
                engine,
                ground=ground,
                reach=reach,
                images=images,
                networks=networks,
                remover=remover,
                starting=settings.starting or max(2, int(info.get("NCPU") or 1)),
                ready_timeout_s=settings.ready_timeout_s,
            ),
            remover=remover,
            roster=roster,
            judge=judge,
            reach=reach,
            census=Census(engine, roster, places, installation=settings.installation),
            images=images,
            capabilities=replace(
                capabilities_of(
                    info, Surroundings(internet=internet, counts="memory" in hierarchies)
                ),
                caller_images=settings.allow_images,
            ),
        )


def _images(engine: Engine, settings: DockerSettings) -> AbstractAsyncContextManager[DockerImages]:
    """A lane of its own: looking for an image never waits for containers that start."""
    usual = ImageSettings(directory=settings.home, installation=settings.installation)
    return open_images(engine.lane(8), settings.images or usual)


@asynccontextmanager
async def _watched(
    engine: Engine, settings: DockerSettings, find_group: FindGroup
) -> AsyncIterator[tuple[Roster, Judge]]:
    """A roster with its background tasks."""
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        events = EventWatch(engine, lambda: roster, installation=settings.installation)
        judge = Judge(engine.lane(8), events)
        roster = Roster(tasks, examine=judge.examine, find_group=find_group)
        disk = DiskWatch(engine, roster, every_s=settings.disk_every_s)
        tasks.start_soon(events.run, name="engine events")
        tasks.start_soon(disk.run, name="disk watch")
        try:
            yield roster, judge
        except Exception as error:  # noqa: BLE001 - raised again below, outside the group
            # A task group would wrap what is none of its tasks' doing.
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _close(networks: Networks, places: Places) -> None:
    with anyio.CancelScope(shield=True):
        await networks.close()
        await to_thread.run_sync(places.close)


async def _ask(engine: Engine) -> Info:
    try:
        info: Info = await engine.call(engine.api.info)
    except EngineRefused as refusal:
        raise call_refused(refusal) from refusal
    return info


def check_reach(host: str, rootless: bool) -> None:  # noqa: FBT001 - one fact of the engine
    """Whether guests of this engine can be reached by their sockets. Blocking.

    Raises `backend_unavailable` with the mend.
    """
    if not host.startswith(_UNIX):
        raise _unavailable(f"{host} is no socket of this machine, and guests are reached by theirs")
    if peer_pid(Path(host.removeprefix(_UNIX))) == 0:
        raise _unavailable(
            "the engine's processes are out of sight, so no guest can be told from an impostor: "
            "run the daemon's container with `pid: host`"
        )
    if os.geteuid() != 0 and not rootless:
        raise _unavailable(
            "guests are reached by sockets that root alone may use: run the daemon as root "
            "(whoever may use the engine's socket is root in effect), or use a rootless engine"
        )


def peer_pid(path: Path) -> int:
    """The process that listens on a socket, as we count; 0 if we cannot see it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        try:
            line.connect(str(path))
        except OSError as error:
            raise _unavailable(f"{path}: {error}") from error
        credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid


def _open_places(settings: DockerSettings, info: Info) -> tuple[Places, Path]:
    """The directories of an installation, made if need be. Raises `backend_unavailable`."""
    try:
        run_dir = open_run_dir(settings.run_dir, settings.installation).absolute()
        places = Places(run_dir=run_dir, home=settings.home, owner=box_owner(info))
        places.open()
        guest = places.bring_guest(guest_binary(str(info.get("Architecture", ""))))
    except OSError as error:
        raise _unavailable(f"its directories cannot be made: {error}") from error
    return places, guest


def _hierarchies() -> dict[str, Path]:
    found = mounted_hierarchies(Path("/proc/self/mountinfo").read_text())
    return found if "memory" in found or "" not in found else {**found, "memory": found[""]}


def _group(record: BoxRecord, hierarchies: Mapping[str, Path]) -> Group | None:
    return group_of(record.process.pid, hierarchies) if record.process else None


def _unavailable(why: str) -> SandboxdError:
    return SandboxdError(
        ErrorCode.BACKEND_UNAVAILABLE,
        f"the docker backend: {why}; `sandboxd doctor` names the mend",
    )
