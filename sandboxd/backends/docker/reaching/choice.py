"""Which way to guests: decided by where the engine is, and by what can be seen of it from here."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from anyio import to_thread

from sandboxd.backends.docker.engine import Engine, EngineRefused, address
from sandboxd.backends.docker.places import Places
from sandboxd.backends.docker.reaching.by_socket import SocketReach
from sandboxd.backends.docker.reaching.by_tcp import Route, open_tcp_reach
from sandboxd.backends.docker.reaching.host_paths import OwnContainer, own_container
from sandboxd.backends.docker.reaching.way import Reach
from sandboxd.backends.docker.refusals import call_refused
from sandboxd.backends.docker.settings import DockerSettings
from sandboxd.errors import SandboxdError
from sandboxd.guest.tcp import guest_token
from sandboxd.wire.codes import ErrorCode

_UNIX = "unix://"
_LOOPBACK = "127.0.0.1"
Way = Literal["socket", "tcp"]


def way(settings: DockerSettings) -> Way:
    """By sockets where the engine is on this machine and nothing else was asked for."""
    if settings.guest != "auto":
        return settings.guest
    return "socket" if address(settings.host).startswith(_UNIX) else "tcp"


async def find_own_container(engine: Engine) -> OwnContainer:
    """The one that we run in, if the engine knows it. Raises `backend_unavailable`."""
    try:
        return await engine.call(own_container, engine.api)
    except EngineRefused as refusal:
        raise call_refused(refusal) from refusal


async def choose_reach(
    engine: Engine, settings: DockerSettings, *, own: OwnContainer, places: Places, guest: Path
) -> Reach:
    """The way to guests, ready. guest: our copy of the executable.

    Raises `backend_unavailable` with the mend.
    """
    if way(settings) == "socket":
        _check_shared(own, [places.shared("box"), guest])
        return SocketReach(places, guest=guest, paths=own.paths)
    route = await to_thread.run_sync(_route, settings, own)
    return await open_tcp_reach(
        engine,
        route=route,
        binary=guest,
        token_of=lambda box_id: guest_token(settings.secret, box_id),
    )


def _check_shared(own: OwnContainer, places: list[Path]) -> None:
    for path in places:
        if not own.paths.shows(path):
            raise unavailable(
                f"the daemon runs in a container, and {path.parent} in it is nothing that the "
                "engine's machine has: mount the run directory and the state directory from it"
            )


def _route(settings: DockerSettings, own: OwnContainer) -> Route:
    """Blocking: looks up the engine's name."""
    if not settings.secret:
        raise unavailable("guests that are reached by TCP need a secret for their tokens")
    at = address(settings.host)
    if own.container_id:
        if settings.network not in own.networks:
            raise unavailable(
                "the daemon runs in a container of this engine and reaches guests by TCP: set "
                "`backend.docker.network` to a network that its container is on"
            )
        return Route(network=settings.network)
    if at.startswith(_UNIX):
        return Route(host=_LOOPBACK)
    return Route(host=_resolve(urlsplit(at).hostname or ""))


def _resolve(host: str) -> str:
    """One address of the engine's machine: the port of a guest is published on it alone."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        raise unavailable(f"the engine's machine {host!r} has no address: {error}") from error
    return str(found[0][4][0])


def check_reach(settings: DockerSettings, *, rootless: bool) -> None:
    """Whether guests of this engine can be reached. Blocking.

    Raises `backend_unavailable` with the mend.
    """
    host = address(settings.host)
    if way(settings) == "tcp":
        return
    if not host.startswith(_UNIX):
        raise unavailable(
            f"{host} is no socket of this machine, and guests are to be reached by theirs: set "
            '`backend.docker.guest = "tcp"`'
        )
    if peer_pid(Path(host.removeprefix(_UNIX))) == 0:
        raise unavailable(
            "the engine's processes are out of sight, so no guest can be told from an impostor: "
            "run the daemon's container with `pid: host`"
        )
    if os.geteuid() != 0 and not rootless:
        raise unavailable(
            "guests are reached by sockets that root alone may use: run the daemon as root "
            "(whoever may use the engine's socket is root in effect), or use a rootless engine"
        )


def peer_pid(path: Path) -> int:
    """The process that listens on a socket, as we count; 0 if we cannot see it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        try:
            line.connect(str(path))
        except OSError as error:
            raise unavailable(f"{path}: {error}") from error
        credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid


def unavailable(why: str) -> SandboxdError:
    """There is no docker backend here, and why."""
    return SandboxdError(
        ErrorCode.BACKEND_UNAVAILABLE,
        f"the docker backend: {why}; `sandboxd doctor` names the mend",
    )
