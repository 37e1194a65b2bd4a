"""The composition root: the only place that names a concrete backend and store, and puts the rooms
together. Everything it opens it closes, in the opposite order.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import structlog
from anyio.abc import TaskStatus

from sandboxd.api.app import build_app, build_routes
from sandboxd.api.auth import Auth
from sandboxd.api.services import Services
from sandboxd.api.tokens import Tokens
from sandboxd.backend_choice import open_backend
from sandboxd.backends.protocol import Backend
from sandboxd.clock import Clock, SystemClock
from sandboxd.compat import prime
from sandboxd.egress.outside import Outside, own_door
from sandboxd.errors import SandboxdError
from sandboxd.leases.sqlite_store import open_sqlite_store
from sandboxd.leases.store import LeaseStore
from sandboxd.leases.ways_out import WayOutSettings
from sandboxd.linux.allocator import give_back_large_blocks
from sandboxd.model.quota import Quota
from sandboxd.rooms import Foundation, Rooms, open_rooms
from sandboxd.server import BACKLOG, Server, bind, build_server
from sandboxd.settings import Settings, SettingsError
from sandboxd.settings.nouns import is_loopback
from sandboxd.state_dir import StateDir, hold_state_dir
from sandboxd.telemetry import audit
from sandboxd.telemetry.logs import set_up_logs
from sandboxd.telemetry.metrics import Metrics
from sandboxd.telemetry.otlp import spans_sent_to

log = structlog.get_logger(__name__)

_LAG_EVERY_S = 0.5
# A full collection walks all that lives, tens of milliseconds with hundreds of connections open;
# what dies in circles here dies young, so full ones may be seldom.
_GC_THRESHOLDS = (10_000, 20, 50)


def serve(
    settings: Settings, *, ephemeral: bool, reload: Callable[[], Settings] | None = None
) -> int:
    """Run a daemon until SIGTERM or SIGINT; returns the exit code.

    ephemeral: end every lease and box at the end (`shutdown`). reload: reads the settings again,
    for SIGHUP. Prints `listening on URL` as its first line on standard output.
    """
    style = settings.log.format
    plain = style == "plain" or (style == "auto" and sys.stderr.isatty())
    set_up_logs(style="plain" if plain else "json", level=settings.log.level)
    _raise_descriptor_limit()
    give_back_large_blocks()
    try:
        with hold_state_dir(settings.state_dir, installation=settings.installation) as state_dir:
            daemon = Daemon(settings, state_dir, ephemeral=ephemeral, reload=reload)
            return anyio.run(daemon.run, backend_options={"use_uvloop": True})
    except (SandboxdError, BaseExceptionGroup) as error:
        known = _known_cause(error)
        if known is None:
            raise
        print(f"sandboxd: {known.detail}", file=sys.stderr)
        return 1


def _known_cause(error: BaseException) -> SandboxdError | None:
    """The one named failure in what task groups wrapped; None where anything else is in it."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, SandboxdError) else None


def openapi() -> dict[str, Any]:
    """The API's description, without a daemon."""
    return build_routes(Metrics()).openapi()


@dataclass(frozen=True, slots=True)
class _Doors:
    """What a signal acts on once callers are let in."""

    server: Server
    services: Services
    rooms: Rooms

    def close(self, *, at_once: bool) -> None:
        """Let nobody in and answer who waits. at_once: do not wait for calls in flight."""
        self.server.force_exit = self.server.force_exit or at_once
        self.rooms.desk.granting.close()
        self.services.stopping.set()
        self.server.should_exit = True


class Daemon:
    """One running daemon."""

    def __init__(
        self,
        settings: Settings,
        state_dir: StateDir,
        *,
        ephemeral: bool,
        reload: Callable[[], Settings] | None,
    ) -> None:
        self._settings = settings
        self._state_dir = state_dir
        self._ephemeral = ephemeral
        self._reload = reload
        self._clock: Clock = SystemClock()
        self._metrics = Metrics()
        self._life: anyio.CancelScope | None = None
        self._doors: _Doors | None = None  # once they are open
        self._stop_asked = False

    async def run(self) -> int:
        """Open the rooms from the ground up, serve, and close them from the top down.

        Signals are heard from the first moment on, so that none of them cuts a start in two.
        """
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._signals, name="signals")
            with anyio.CancelScope() as self._life:
                await self._open_and_serve()
            tasks.cancel_scope.cancel()
        return 0

    async def _open_and_serve(self) -> None:
        settings = self._settings
        listener = bind(settings.server.host, settings.server.port)
        url = settings.server.base_url(listener.getsockname()[1])
        async with (
            spans_sent_to(settings.otlp_endpoint, installation=self._state_dir.installation),
            open_backend(settings, self._state_dir) as backend,
            open_sqlite_store(self._state_dir.store, self._metrics) as store,
            open_rooms(self._foundation(backend, store, listener), settings.templates) as rooms,
        ):
            services = self._services(rooms, backend, url)
            open_metrics = is_loopback(settings.server.host)
            app = build_app(services, open_metrics=open_metrics, foreign=prime.routers())
            server = build_server(app)
            self._doors = _Doors(server, services, rooms)
            # What is here by now stays, so collections need not look through it: they took 90 ms
            # of the loop's time with hundreds of connections open.
            gc.collect()
            gc.freeze()
            gc.set_threshold(*_GC_THRESHOLDS)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch_lag, name="loop-lag")
                self._state_dir.announce(url)
                services.ready = True
                if not self._stop_asked:
                    listener.listen(BACKLOG)  # before it is said
                    print(f"listening on {url}", flush=True)
                    log.info("listening", url=url, backend=backend.name, pid=os.getpid())
                    await server.serve(sockets=[listener])
                rooms.desk.granting.close()
                left = await rooms.clear() if self._ephemeral else 0
                if left:
                    log.error("sweep.incomplete", boxes=left)
                tasks.cancel_scope.cancel()

    def _foundation(
        self, backend: Backend, store: LeaseStore, listener: socket.socket
    ) -> Foundation:
        server, way_out = self._settings.server, self._settings.way_out
        door = own_door(server.host, listener.getsockname()[1], public_url=server.public_url)
        return Foundation(
            backend=backend,
            store=store,
            clock=self._clock,
            metrics=self._metrics,
            installation=self._state_dir.installation,
            most=self._settings.limits.max_sandboxes,
            quotas=_quotas(self._settings),
            mcp_servers=self._settings.mcp_servers,
            slots=_processors(backend) if self._settings.backend.bind_cpus else 0,
            outside=Outside(door),
            way_out=WayOutSettings(
                limits=way_out.limits, wider=way_out.wider, forwards=way_out.forwards
            ),
        )

    def _services(self, rooms: Rooms, backend: Backend, url: str) -> Services:
        tokens = Tokens(self._state_dir.token_secret, clock=self._clock)
        return Services(
            desk=rooms.desk,
            house=rooms.house,
            commands=rooms.commands,
            shells=rooms.shells,
            files=rooms.files,
            ports=rooms.ports,
            kernels=rooms.kernels,
            mcp=rooms.mcp,
            prefetcher=rooms.prefetcher,
            sweeper=rooms.sweeper,
            clear=partial(rooms.clear, reopen=True),
            templates=self._settings.templates,
            auth=Auth(
                _keys(self._settings), tokens=tokens, operator_key=self._state_dir.operator_key
            ),
            tokens=tokens,
            clock=self._clock,
            metrics=self._metrics,
            events=rooms.events,
            runs=rooms.runs,
            quotas=rooms.quotas,
            backend=backend.name,
            capabilities=backend.capabilities(),
            base_url=url,
            stopping=anyio.Event(),
            trusted_ports=_trusted_ports(self._settings),
            foreign_images=self._settings.compat,
        )

    async def _signals(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
            task_status.started()
            async for number in received:
                if number is not signal.SIGHUP:
                    log.info("stopping", signal=number.name)
                    self._stop()
                elif self._doors is not None:
                    await self._read_again(self._doors.services, self._doors.rooms)

    def _stop(self) -> None:
        """Asked once: answer who waits, and go. Asked twice: do not wait for calls.

        Before the doors are open a start is given up at once, which loses nothing: what lives is
        adopted at the next one. One that is to leave nothing behind opens first, to clear it.
        """
        again, self._stop_asked = self._stop_asked, True
        if self._doors is not None:
            self._doors.close(at_once=again)
        elif self._life is not None and (again or not self._ephemeral):
            self._life.cancel()

    async def _read_again(self, services: Services, rooms: Rooms) -> None:
        """Templates and keys; what else changed needs a restart. A broken file changes nothing."""
        if self._reload is None:
            return
        try:
            settings = self._reload()
        except SettingsError as error:
            log.error("reload.refused", error=str(error))
            audit.act("reload", who="operator", refused=True)
            return
        await rooms.take(settings.templates)
        services.templates = settings.templates
        services.trusted_ports = _trusted_ports(settings)
        services.foreign_images = settings.compat
        services.auth.change_keys(_keys(settings))
        rooms.quotas.change(_quotas(settings))
        names = sorted(key.name for key in settings.server.api_keys)
        audit.act("reload", who="operator", templates=sorted(settings.templates), keys=names)
        log.info("reloaded", templates=sorted(settings.templates))

    async def _watch_lag(self) -> None:
        while True:
            due = anyio.current_time() + _LAG_EVERY_S
            await anyio.sleep(_LAG_EVERY_S)
            self._metrics.loop_lag.observe(max(0.0, anyio.current_time() - due))


def _processors(backend: Backend) -> int:
    """How many sandboxes may run on; where their machine is not known, ours stands in for it.

    0 where they are on many: then each keeps to its share by its limit alone.
    """
    if not backend.capabilities().one_machine:
        return 0
    most = backend.capabilities().most
    return (os.cpu_count() or 1) if most is None else int(most.cpu)


def _keys(settings: Settings) -> Mapping[str, str]:
    return {key.key: key.name for key in settings.server.api_keys}


def _quotas(settings: Settings) -> Mapping[str, Quota]:
    return {key.name: key.quota for key in settings.server.api_keys}


def _trusted_ports(settings: Settings) -> frozenset[str]:
    return frozenset(name for name, doors in settings.doors.items() if doors.trusted_ports)


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(ValueError, OSError):  # what cannot be had is `doctor`'s to say
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
