"""From the checked file to the frozen nouns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sandboxd.egress.limits import WayOutLimits
from sandboxd.model.template import (
    BoxSpec,
    Mount,
    Network,
    PoolSettings,
    Resources,
    Setup,
    Template,
)
from sandboxd.settings.image_options import image_options
from sandboxd.settings.keys import Complain, read_keys
from sandboxd.settings.kubernetes_options import kubernetes_options, pod_options
from sandboxd.settings.misfits import misfits
from sandboxd.settings.nouns import (
    BackendSettings,
    DockerOptions,
    LimitSettings,
    LocalOptions,
    LogSettings,
    ServerSettings,
    Settings,
    TemplateDoors,
    WayOutOptions,
    is_loopback,
)
from sandboxd.settings.places import default_state_dir
from sandboxd.settings.schema import (
    DockerTable,
    SettingsFile,
    TemplateTable,
    WayOutTable,
)
from sandboxd.settings.tables.mcp_keys import mcp_servers, shared_mcp_server


def build(
    file: SettingsFile, *, source: Path | None, env: Mapping[str, str], complain: Complain
) -> Settings:
    """The settings of a valid file. Reads key files; says through `complain` what does not fit."""
    settings = Settings(
        state_dir=Path(file.state_dir) if file.state_dir else default_state_dir(env),
        installation=file.installation,
        backend=_backend(file, source, complain),
        server=_server(file, source, complain),
        limits=LimitSettings(max_sandboxes=file.limits.max_sandboxes),
        way_out=_way_out(file.way_out),
        log=LogSettings(level=file.log.level, format=file.log.format),
        otlp_endpoint=file.telemetry.otlp_endpoint,
        compat={
            name: dict(getattr(file.compat, name).images) for name in file.compat.model_fields_set
        },
        templates={name: _template(name, table) for name, table in file.templates.items()},
        doors={name: _doors(table) for name, table in file.templates.items()},
        mcp_servers={
            name: shared_mcp_server(name, table) for name, table in file.mcp_servers.items()
        },
        source=source,
    )
    for key, text in misfits(settings):
        complain(key, text)
    return settings


def _backend(file: SettingsFile, source: Path | None, complain: Complain) -> BackendSettings:
    table = file.backend
    return BackendSettings(
        kind=table.kind,
        run_dir=Path(table.run_dir) if table.run_dir else None,
        bind_cpus=table.bind_cpus,
        orphan_s=table.orphan_s,
        local=LocalOptions(
            first_id=table.local.first_id,
            id_count=table.local.id_count,
            images=tuple(map(Path, table.local.images)),
        ),
        docker=_docker(table.docker, source, complain),
        kubernetes=kubernetes_options(table.kubernetes),
    )


def _docker(table: DockerTable, source: Path | None, complain: Complain) -> DockerOptions:
    return DockerOptions(
        host=table.host,
        guest=table.guest,
        tls_dir=Path(table.tls_dir) if table.tls_dir else None,
        network=table.network,
        starting=table.starting,
        ready_timeout_s=table.ready_timeout_s,
        disk_every_s=table.disk_every_s,
        images=image_options(table, prefix="backend.docker", source=source, complain=complain),
    )


def _way_out(table: WayOutTable) -> WayOutOptions:
    limits = WayOutLimits(
        connections=table.connections,
        opens_per_s=table.opens_per_s,
        connect_s=table.connect_s,
        idle_s=table.idle_s,
        total_bytes=table.total_mb << 20,
    )
    return WayOutOptions(wider=table.wider, forwards=table.forwards, limits=limits)


def _server(file: SettingsFile, source: Path | None, complain: Complain) -> ServerSettings:
    server = file.server
    if not server.api_keys and not is_loopback(server.host):
        text = f"others can reach {server.host} and there is no key"
        complain("server.host", f"{text}; give `server.api_keys`, or listen on 127.0.0.1")
    return ServerSettings(
        host=server.host,
        port=server.port,
        public_url=server.public_url.rstrip("/"),
        api_keys=read_keys(server.api_keys, source=source, complain=complain),
    )


def _template(name: str, table: TemplateTable) -> Template:
    spec = BoxSpec(
        image=table.image,
        resources=Resources(**table.resources.model_dump()),
        network=Network(kind=table.network.kind, allow=tuple(table.network.allow)),
        runtime=table.runtime,
        kernels=tuple(table.kernels),
        setup=_setup(table),
        pull=table.pull,
        mounts=tuple(Mount(**mount.model_dump()) for mount in table.mounts),
        shm_mb=table.shm_mb,
        pod=pod_options(table.kubernetes),
    )
    template = Template(
        name=name,
        spec=spec,
        env=dict(table.env),
        forwards={int(port): url for port, url in table.forwards.items()},
        workdir=table.workdir,
        user=table.user,
        capabilities=table.capabilities,
        timeout_s=table.timeout_s,
        max_timeout_s=table.max_timeout_s,
        idle_timeout_s=table.idle_timeout_s,
        pool=PoolSettings(**table.pool.model_dump()),
        mcp_servers=mcp_servers(table.mcp_servers),
    )
    early = tuple(server for server in template.mcp_servers if server.prestart)
    if not (table.kernels or early):
        return template  # terms of none would only tell equal boxes apart
    terms = template.kernel_terms(tuple(table.kernel_preload))
    return replace(template, spec=replace(spec, kernel_terms=terms, mcp_servers=early))


def _setup(table: TemplateTable) -> Setup:
    """Empty without commands, so that a change of what they would run with changes nothing."""
    if not table.setup:
        return Setup()
    return Setup(
        commands=tuple(table.setup),
        env=tuple(sorted(table.env.items())),
        workdir=table.workdir,
        user=table.user,
        timeout_s=table.setup_timeout_s,
    )


def _doors(table: TemplateTable) -> TemplateDoors:
    return TemplateDoors(trusted_ports=table.trusted_ports)
