"""Which backend the settings name, and what it is opened with. Part of the composition root."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxd.backends.protocol import Backend
from sandboxd.settings import Settings
from sandboxd.state_dir import StateDir

if TYPE_CHECKING:  # a backend is loaded only if it is the one
    from sandboxd.backends.docker import DockerSettings
    from sandboxd.backends.kubernetes import KubernetesSettings


@asynccontextmanager
async def open_backend(settings: Settings, state_dir: StateDir) -> AsyncIterator[Backend]:
    """The backend that the settings name. Raises as its `open_…`."""
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
                    first_id=settings.backend.local.first_id,
                    id_count=settings.backend.local.id_count,
                    images=settings.backend.local.images,
                    hidden=hidden_files(settings),
                    orphan_s=settings.backend.orphan_s,
                )
            )
        case "docker":
            from sandboxd.backends.docker import open_docker

            return open_docker(docker_settings(settings, state_dir))
        case "kubernetes":
            from sandboxd.backends.kubernetes import open_kubernetes

            return open_kubernetes(
                kubernetes_settings(
                    settings,
                    installation=state_dir.installation,
                    secret=state_dir.token_secret,
                    keys_dir=state_dir.path / "cluster-keys",
                )
            )
        case "fake":
            from sandboxd.backends.fake import FakeSettings, open_fake

            return open_fake(FakeSettings())


def docker_settings(settings: Settings, state_dir: StateDir) -> DockerSettings:
    """What the docker backend is opened with."""
    from sandboxd.backends.docker import DockerSettings
    from sandboxd.backends.docker.imaging import ImageSettings, Login

    options = settings.backend.docker
    return DockerSettings(
        state_dir=state_dir.path,
        run_dir=settings.backend.run_dir,
        installation=state_dir.installation,
        host=options.host,
        guest=options.guest,
        tls_dir=options.tls_dir,
        starting=options.starting,
        ready_timeout_s=options.ready_timeout_s,
        disk_every_s=options.disk_every_s,
        orphan_s=settings.backend.orphan_s,
        network=options.network,
        images=ImageSettings(
            directory=state_dir.path / "docker",
            installation=state_dir.installation,
            logins={
                host: Login(username=login.username, password_file=login.password_file)
                for host, login in options.images.registries.items()
            },
            disk_mb=options.images.disk_mb,
            pulls_per_registry=options.images.pulls_per_registry,
            stall_s=options.images.stall_s,
        ),
        allow_images=options.images.allow_images,
        secret=state_dir.token_secret,
    )


def kubernetes_settings(
    settings: Settings, *, installation: str, secret: bytes, keys_dir: Path | None = None
) -> KubernetesSettings:
    """What the kubernetes backend is opened with. secret: for the tokens of guests."""
    from sandboxd.backends.kubernetes import KubernetesSettings

    options = settings.backend.kubernetes
    return KubernetesSettings(
        **{each.name: getattr(options, each.name) for each in fields(options)},
        installation=installation,
        orphan_s=settings.backend.orphan_s,
        secret=secret,
        keys_dir=keys_dir,
    )


def hidden_files(settings: Settings) -> tuple[Path, ...]:
    """What no sandbox may read, wherever it lies: the configuration and the keys."""
    named = () if settings.source is None else (settings.source,)
    keys = [key.file for key in settings.server.api_keys if key.file is not None]
    logins = settings.backend.docker.images.registries.values()
    passwords = [login.password_file for login in logins]
    return (Path("/etc/sandboxd"), *named, *keys, *passwords)
