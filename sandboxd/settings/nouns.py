"""The settings as the daemon uses them: frozen, checked, with secrets out of every repr.

Knows nothing of TOML, variables or where a value came from.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sandboxd.egress.limits import WayOutLimits
from sandboxd.model.mcp_server import SharedMcpServer
from sandboxd.model.quota import Quota
from sandboxd.model.template import Template
from sandboxd.settings.kubernetes_options import KubernetesOptions

BackendKind = Literal["local", "docker", "kubernetes", "fake"]
GuestMode = Literal["auto", "socket", "tcp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """Who may call, by a name that may be logged and a key that may not. file: where it lies."""

    name: str
    key: str = field(repr=False)
    file: Path | None = None
    quota: Quota = field(default_factory=Quota)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Where the daemon listens. port 0 lets the system choose one."""

    host: str = "127.0.0.1"
    port: int = 8420
    public_url: str = ""
    api_keys: tuple[ApiKey, ...] = ()

    def base_url(self, port: int | None = None) -> str:
        """What handed-out URLs start with, without a slash at the end; port: the bound one."""
        if self.public_url:
            return self.public_url.rstrip("/")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port if port is None else port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """The local backend's own: as root, the range of ids that boxes live in.

    images: folders below which a caller may name an image that no template has.
    """

    first_id: int = 100_000
    id_count: int = 65_536
    images: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryLogin:
    """Who we are at a registry. The password itself is never among the settings."""

    username: str
    password_file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """What an operator decides of a container engine's images.

    registries: by host. allow_images: patterns of what callers may name. disk_mb: 0 for no bound.
    """

    registries: Mapping[str, RegistryLogin] = field(default_factory=dict)
    allow_images: tuple[str, ...] = ()
    disk_mb: int = 0
    pulls_per_registry: int = 2
    stall_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerOptions:
    """The docker backend's own; empty and 0 leave the choice to it. Times in seconds."""

    host: str = ""
    guest: GuestMode = "auto"
    tls_dir: Path | None = None
    network: str = ""
    starting: int = 0
    ready_timeout_s: float = 60.0
    disk_every_s: float = 5.0
    images: ImageOptions = field(default_factory=ImageOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """Which backend makes the boxes.

    run_dir: a short folder for its sockets; None: the backend chooses one for this installation.
    bind_cpus: whether commands of a box run on as many processors as its share alone.
    orphan_s: without a word from a daemon, after which a box that is not leased ends itself.
    """

    kind: BackendKind = "local"
    run_dir: Path | None = None
    bind_cpus: bool = True
    orphan_s: float = 3600.0
    local: LocalOptions = field(default_factory=LocalOptions)
    docker: DockerOptions = field(default_factory=DockerOptions)
    kubernetes: KubernetesOptions = field(default_factory=KubernetesOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Bounds over all pools together."""

    max_sandboxes: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOutOptions:
    """What leases may ask of ways out, and what each way out may take."""

    wider: bool = True
    forwards: bool = True
    limits: WayOutLimits = field(default_factory=WayOutLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How much is logged, and in which form (`auto`: for people on a terminal, else JSON)."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "plain"] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateDoors:
    """What the doors of a template's sandboxes offer beside commands and files."""

    trusted_ports: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything an operator may decide.

    otlp_endpoint: where spans are sent; empty: nowhere.
    installation: the name on all that is ours; empty: as the state directory has it.
    compat: per foreign dialect, its image names to our templates (`*` for the rest).
    doors: by template name, one for each template.
    source: the file that was read, None for the built-in default.
    """

    state_dir: Path
    installation: str = ""
    backend: BackendSettings = field(default_factory=BackendSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    way_out: WayOutOptions = field(default_factory=WayOutOptions)
    log: LogSettings = field(default_factory=LogSettings)
    compat: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    templates: Mapping[str, Template] = field(default_factory=dict)
    otlp_endpoint: str = ""
    doors: Mapping[str, TemplateDoors] = field(default_factory=dict)
    mcp_servers: Mapping[str, SharedMcpServer] = field(default_factory=dict)
    source: Path | None = None


def is_loopback(host: str) -> bool:
    """Whether a server bound to `host` can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
