"""Opens the docker backend: asks the engine what it can do, and puts the parts together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread

from sandboxd.backends.docker.backend import DockerBackend
from sandboxd.backends.docker.engine import Engine, EngineRefused, open_engine
from sandboxd.backends.docker.imaging import DockerImages, ImageSettings, open_images
from sandboxd.backends.docker.making import Ground, Maker
from sandboxd.backends.docker.networks import Networks
from sandboxd.backends.docker.places import Places
from sandboxd.backends.docker.probing import (
    Info,
    Surroundings,
    box_owner,
    capabilities_of,
    is_rootless,
)
from sandboxd.backends.docker.reaching.choice import (
    check_reach,
    choose_reach,
    find_own_container,
    unavailable,
    way,
)
from sandboxd.backends.docker.records import BoxRecord
from sandboxd.backends.docker.refusals import call_refused
from sandboxd.backends.docker.removing import Remover
from sandboxd.backends.docker.seccomp_option import seccomp_option
from sandboxd.backends.docker.settings import DockerSettings
from sandboxd.backends.docker.watching.census import Census
from sandboxd.backends.docker.watching.disk import DiskWatch
from sandboxd.backends.docker.watching.events import EventWatch
from sandboxd.backends.docker.watching.judging import Judge
from sandboxd.backends.docker.watching.living import FindGroup, Roster
from sandboxd.backends.docker.watching.readings import EngineGroup
from sandboxd.backends.parts.background import background
from sandboxd.backends.protocol import Capabilities
from sandboxd.guest.binary import guest_binary
from sandboxd.guest.run_dir import open_run_dir
from sandboxd.linux.group_readings import Group, group_of, mounted_hierarchies

_CLOSING_S = 10.0


@asynccontextmanager
async def open_docker(settings: DockerSettings) -> AsyncIterator[DockerBackend]:
    """The backend, ready to make boxes. On leaving, boxes live on; only our watch of them ends.

    Raises `backend_unavailable`, naming the mend, or `not_supported`.
    """
    engine = await open_engine(settings.host, tls_dir=settings.tls_dir)
    try:
        async with _opened(engine, settings) as backend:
            yield backend
    finally:
        with anyio.move_on_after(_CLOSING_S, shield=True):
            await engine.aclose()


@asynccontextmanager
async def _opened(engine: Engine, settings: DockerSettings) -> AsyncIterator[DockerBackend]:
    info = await _ask(engine)
    await to_thread.run_sync(partial(check_reach, settings, rootless=is_rootless(info)))
    async with AsyncExitStack() as stack:
        places, guest = await to_thread.run_sync(_open_places, settings, info)
        networks = Networks(engine, settings)
        stack.push_async_callback(_close, networks, places)
        hierarchies = await to_thread.run_sync(_hierarchies)
        internet = await networks.offers_internet()
        surroundings = Surroundings(
            internet=internet, counts="memory" in hierarchies, named=bool(settings.network)
        )
        capabilities = _capabilities(info, settings, surroundings)
        own = await find_own_container(engine)
        reach = await choose_reach(engine, settings, own=own, places=places, guest=guest)
        near = way(settings) == "socket"
        ground = Ground(
            installation=settings.installation,
            tag=settings.tag,
            places=places,
            seccomp=await seccomp_option(
                engine, info, home=settings.home, paths=own.paths, near=near
            ),
            ready_timeout_s=settings.ready_timeout_s,
            orphan_s=settings.orphan_s,
        )
        images = await stack.enter_async_context(_images(engine, settings))
        roster, judge = await stack.enter_async_context(
            _watched(engine, settings, places, lambda record: _group(engine, record, hierarchies))
        )
        remover = Remover(engine, roster, places, installation=settings.installation)
        yield DockerBackend(
            maker=Maker(
                engine,
                ground=ground,
                reach=reach,
                images=images,
                networks=networks,
                remover=remover,
                judge=judge,
                # One more than cores: what we do between two calls would else leave a core idle.
                starting=settings.starting or 1 + int(info.get("NCPU") or 1),
            ),
            remover=remover,
            roster=roster,
            judge=judge,
            reach=reach,
            census=Census(engine, roster, places, reach=reach, installation=settings.installation),
            images=images,
            capabilities=capabilities,
        )


def _capabilities(info: Info, settings: DockerSettings, surroundings: Surroundings) -> Capabilities:
    """Raises `backend_unavailable` where no box could be reached."""
    by_tcp = way(settings) == "tcp"
    if by_tcp and not surroundings.internet:
        raise unavailable(
            "guests are to be reached by TCP, and the engine has no network for them: let it have "
            "its default bridge, or name a network in `backend.docker.network`"
        )
    found = capabilities_of(info, replace(surroundings, by_tcp=by_tcp))
    return replace(found, caller_images=settings.allow_images, orphan_s=settings.orphan_s)


def _images(engine: Engine, settings: DockerSettings) -> AbstractAsyncContextManager[DockerImages]:
    """A lane of its own: looking for an image never waits for containers that start."""
    usual = ImageSettings(directory=settings.home, installation=settings.installation)
    return open_images(engine.lane(8), settings.images or usual)


@asynccontextmanager
async def _watched(
    engine: Engine, settings: DockerSettings, places: Places, find_group: FindGroup
) -> AsyncIterator[tuple[Roster, Judge]]:
    """A roster with its background tasks."""
    async with background() as tasks:
        events = EventWatch(engine, lambda: roster, installation=settings.installation)
        judge = Judge(engine.lane(8), events)
        roster = Roster(tasks, examine=judge.examine, find_group=find_group)
        disk = DiskWatch(engine, roster, places, every_s=settings.disk_every_s)
        tasks.start_soon(events.run, name="engine events")
        tasks.start_soon(disk.run, name="disk watch")
        yield roster, judge


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


def _open_places(settings: DockerSettings, info: Info) -> tuple[Places, Path]:
    """The directories of an installation, made if need be. Raises `backend_unavailable`."""
    try:
        run_dir = open_run_dir(settings.run_dir, settings.installation).absolute()
        places = Places(run_dir=run_dir, home=settings.home, owner=box_owner(info))
        places.open()
        guest = places.bring_guest(guest_binary(str(info.get("Architecture", ""))))
    except OSError as error:
        raise unavailable(f"its directories cannot be made: {error}") from error
    return places, guest


def _hierarchies() -> dict[str, Path]:
    found = mounted_hierarchies(Path("/proc/self/mountinfo").read_text())
    return found if "memory" in found or "" not in found else {**found, "memory": found[""]}


def _group(engine: Engine, record: BoxRecord, hierarchies: Mapping[str, Path]) -> Group | None:
    if record.process is None:
        return EngineGroup(engine.api, record.container_id)
    return group_of(record.process.pid, hierarchies)
