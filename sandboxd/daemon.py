"""The composition root: the only place that names a concrete backend and store, and puts the rooms
together. Everything it opens it closes, in the opposite order."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import anyio
import structlog
from anyio.abc import TaskStatus

from sandboxd.api.app import build_app, build_routes
from sandboxd.api.auth import Auth
from sandboxd.api.services import Services
from sandboxd.api.tokens import Tokens
from sandboxd.backends.protocol import Backend
from sandboxd.clock import Clock, SystemClock
from sandboxd.errors import SandboxdError
from sandboxd.execution.commands import Commands
from sandboxd.execution.files import Files
from sandboxd.execution.shells import Shells
from sandboxd.leases.adoption import Adoption
from sandboxd.leases.desk import Desk
from sandboxd.leases.reaper import Reaper
from sandboxd.leases.sqlite_store import open_sqlite_store
from sandboxd.model.template import Template
from sandboxd.pool.disposer import Disposer
from sandboxd.pool.warm_pool import House, WarmPool
from sandboxd.server import Server, bind, build_server
from sandboxd.settings import Settings, SettingsError
from sandboxd.settings.nouns import is_loopback
from sandboxd.state_dir import StateDir, hold_state_dir
from sandboxd.telemetry.logs import set_up_logs
from sandboxd.telemetry.metrics import Metrics
from sandboxd.wire.codes import EndReason, ErrorCode

log = structlog.get_logger(__name__)

_LAG_EVERY_S = 0.5
_SWEEP_S = 60.0  # an ephemeral daemon's last act: every box gone, or it says which are not


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
    try:
        with hold_state_dir(settings.state_dir) as state_dir:
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

    async def run(self) -> int:
        """Open the rooms from the ground up, serve, and close them from the top down."""
        server_settings = self._settings.server
        listener = bind(server_settings.host, server_settings.port)
        port: int = listener.getsockname()[1]
        async with (
            open_backend(self._settings, self._state_dir) as backend,
            open_sqlite_store(self._state_dir.store, self._metrics) as store,
        ):
            disposer = Disposer(backend)
            house = House(most=self._settings.limits.max_sandboxes)
            disposer.when_gone(house.gone)
            desk = Desk(
                backend=backend,
                store=store,
                house=house,
                clock=self._clock,
                metrics=self._metrics,
                limits_on_commands=backend.capabilities().limits_on_commands,
            )

            def open_pool(template: Template) -> WarmPool:
                return WarmPool(
                    template,
                    backend=backend,
                    disposer=disposer,
                    house=house,
                    labels={"installation": self._state_dir.installation},
                    metrics=self._metrics,
                )

            for template in self._settings.templates.values():
                open_pool(template)
            services = self._services(desk, house, backend, base_url=server_settings.base_url(port))
            adoption = Adoption(
                desk=desk,
                house=house,
                store=store,
                backend=backend,
                disposer=disposer,
                clock=self._clock,
                metrics=self._metrics,
                open_pool=open_pool,
            )
            open_metrics = is_loopback(server_settings.host)
            server = build_server(build_app(services, open_metrics=open_metrics))
            async with anyio.create_task_group() as rooms:
                await rooms.start(disposer.run, name="disposer")
                await rooms.start(desk.run, name="desk")
                await adoption.run()
                for pool in list(house.pools.values()):
                    await rooms.start(pool.run, name=f"pool-{pool.template.name}")
                await rooms.start(Reaper(desk, clock=self._clock).run, name="reaper")
                rooms.start_soon(self._watch_lag, name="loop-lag")

                async def open_more(template: Template) -> None:
                    pool = open_pool(template)
                    await rooms.start(pool.run, name=f"pool-{template.name}")

                await rooms.start(self._signals, server, services, open_more, name="signals")
                services.ready = True
                print(f"listening on {server_settings.base_url(port)}", flush=True)
                log.info("listening", port=port, backend=backend.name, pid=os.getpid())
                await server.serve(sockets=[listener])
                desk.close()
                if self._ephemeral:
                    await self._sweep(desk, house, disposer)
                rooms.cancel_scope.cancel()
        return 0

    def _services(self, desk: Desk, house: House, backend: Backend, *, base_url: str) -> Services:
        tokens = Tokens(self._state_dir.token_secret, clock=self._clock)
        return Services(
            desk=desk,
            house=house,
            commands=Commands(desk, self._metrics),
            shells=Shells(desk),
            files=Files(desk),
            templates=self._settings.templates,
            auth=Auth(_keys(self._settings), tokens=tokens),
            tokens=tokens,
            clock=self._clock,
            metrics=self._metrics,
            backend=backend.name,
            capabilities=backend.capabilities(),
            base_url=base_url,
        )

    async def _signals(
        self,
        server: Server,
        services: Services,
        open_pool: Callable[[Template], Any],
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
            task_status.started()
            async for number in received:
                if number is signal.SIGHUP:
                    await self._read_again(services, open_pool)
                    continue
                if server.should_exit:
                    server.force_exit = True
                log.info("stopping", signal=number.name)
                services.desk.close()
                server.should_exit = True

    async def _read_again(self, services: Services, open_pool: Callable[[Template], Any]) -> None:
        """Templates and keys; what else changed needs a restart. A broken file changes nothing."""
        if self._reload is None:
            return
        try:
            settings = self._reload()
        except SettingsError as error:
            log.error("reload.refused", error=str(error))
            return
        for name, template in settings.templates.items():
            if name in services.house.pools:
                services.house.pools[name].change(template)
            else:
                await open_pool(template)
        for name, pool in services.house.pools.items():
            if name not in settings.templates:
                pool.retire()
        services.templates = settings.templates
        services.auth.change_keys(_keys(settings))
        log.info("reloaded", templates=sorted(settings.templates))

    async def _sweep(self, desk: Desk, house: House, disposer: Disposer) -> None:
        for tenancy in desk.book:
            desk.end(tenancy, EndReason.SHUTDOWN, detail="an ephemeral daemon ended")
        for pool in house.pools.values():
            pool.retire()
        with anyio.move_on_after(_SWEEP_S):
            while house.exists:
                await disposer.next_gone()
        if house.exists:
            log.error("sweep.incomplete", boxes=house.exists)

    async def _watch_lag(self) -> None:
        while True:
            due = anyio.current_time() + _LAG_EVERY_S
            await anyio.sleep(_LAG_EVERY_S)
            self._metrics.loop_lag.observe(max(0.0, anyio.current_time() - due))


@asynccontextmanager
async def open_backend(settings: Settings, state_dir: StateDir) -> AsyncIterator[Backend]:
    """The backend that the settings name. Raises `not_supported` for one that is not built yet."""
    async with _backend(settings, state_dir) as backend:
        yield backend


def _backend(settings: Settings, state_dir: StateDir) -> AbstractAsyncContextManager[Backend]:
    match settings.backend.kind:
        case "local":
            from sandboxd.backends.local import LocalSettings, open_local

            return open_local(
                LocalSettings(
                    state_dir=state_dir.path,
                    run_dir=settings.backend.run_dir,
                    installation=state_dir.installation,
                )
            )
        case "fake":
            from sandboxd.backends.fake import FakeSettings, open_fake

            return open_fake(FakeSettings())
        case kind:
            raise SandboxdError(
                ErrorCode.NOT_SUPPORTED,
                f"backend {kind!r} is not part of this version: use local",
            )


def _keys(settings: Settings) -> Mapping[str, str]:
    return {key.key: key.name for key in settings.server.api_keys}


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(ValueError, OSError):  # what cannot be had is `doctor`'s to say
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
