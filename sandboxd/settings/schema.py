"""The TOML file's shape at the border: pydantic models that refuse what they do not know.

The string below a field is its line in the configuration reference. Values are strict, as TOML
has types.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from sandboxd.settings.fields import (
    AbsolutePath,
    AllowedHost,
    Environment,
    Filled,
    ForwardTarget,
    InstallationName,
    ModuleName,
    Name,
    PortName,
    Table,
    Text,
    Url,
)
from sandboxd.settings.nouns import BackendKind, GuestMode
from sandboxd.settings.tables.compat_keys import CompatTable
from sandboxd.settings.tables.image_keys import ImageKeys
from sandboxd.settings.tables.kubernetes_keys import KubernetesTable, PodTable
from sandboxd.settings.tables.mcp_keys import McpServerTable, SharedMcpServerTable

_YEAR_S = 366 * 86400


def _network(value: object) -> object:
    """`"none"` and `"internet"` are short for a table."""
    if isinstance(value, str):
        return {"kind": value}
    if isinstance(value, dict) and "kind" not in value:
        return {"kind": "allow", **value}
    return value


class QuotaTable(Table):
    """What the leases of one key may take together."""

    leases: int | None = Field(None, ge=0, le=100_000)
    """Leases at once, waiting ones too; an ended one counts until its sandbox is gone."""
    cpu: float | None = Field(None, ge=0, le=1 << 20)
    """Cores, as the sandboxes' limits say."""
    memory_mb: int | None = Field(None, ge=0, le=1 << 34)
    """Memory in MiB, as the sandboxes' limits say."""
    creates_per_minute: int | None = Field(None, ge=1, le=1_000_000)
    """Leases asked for a minute; so many may come all at once."""


class ApiKeyTable(Table):
    """One caller's key."""

    name: Name
    """Who it is, as logs and objects name the caller."""
    key_file: Filled | None = None
    """A file that holds the key and nothing else."""
    key: Filled | None = Field(None, repr=False)
    """The key itself; `key_file` keeps it out of this file."""
    quota: QuotaTable = Field(default_factory=QuotaTable)
    """What its leases may take together; what is not given has no bound."""

    @model_validator(mode="after")
    def _one_of_both(self) -> ApiKeyTable:
        if (self.key is None) == (self.key_file is None):
            msg = "give either `key_file` or `key`"
            raise ValueError(msg)
        return self


class ServerTable(Table):
    """Where the daemon listens."""

    host: Filled = "127.0.0.1"
    """Address to listen on. Without `api_keys` it must be a loopback one."""
    port: int = Field(8420, ge=0, le=65535)
    """Port to listen on; 0 lets the system choose."""
    public_url: Url = ""
    """What URLs that we hand out start with; empty: the address we listen on."""
    api_keys: list[ApiKeyTable] = []
    """Who may call; empty: anybody on this machine."""


class LocalTable(Table):
    """The local backend."""

    first_id: int = Field(100_000, ge=65_536, le=(1 << 32) - 65_537)
    """As root: the first user and group id of the range that sandboxes live in."""
    id_count: int = Field(65_536, ge=65_536, le=1 << 31)
    """As root: how many ids that range has; none may be an account's."""
    images: list[AbsolutePath] = []
    """Folders below which a caller may name an image; else only templates name any but "host"."""


class DockerTable(ImageKeys):
    """The docker backend: any engine with Docker's API."""

    host: Text = ""
    """Address of the engine, as `unix:///run/podman/podman.sock`; empty: `DOCKER_HOST`, else
    `unix:///var/run/docker.sock`."""
    tls_dir: AbsolutePath | None = None
    """Folder with `ca.pem`, `cert.pem` and `key.pem` for an engine reached by `tcp://`; unset: as
    `DOCKER_TLS_VERIFY` and `DOCKER_CERT_PATH` say."""
    guest: GuestMode = "auto"
    """How guests are reached: by a socket in a folder that the sandbox and the daemon share, or
    by TCP; `auto`: by socket where the engine is on this machine."""
    network: Text = ""
    """The engine's network for sandboxes with `network = "internet"`; empty: a bridge of our own,
    on which they do not reach each other."""
    starting: int = Field(0, ge=0, le=256)
    """Containers that start at once, over all pools; 0: one more than there are cores."""
    ready_timeout_s: float = Field(60, ge=1, le=600)
    """Seconds for a container to start and its guest to answer."""
    disk_every_s: float = Field(5, ge=0.1, le=3600)
    """Seconds between two measurements of what a sandbox wrote."""


class BackendTable(Table):
    """What makes the sandboxes."""

    kind: BackendKind = "local"
    """Which backend makes the sandboxes."""
    run_dir: AbsolutePath | None = None
    """Short folder for sockets; unset: one below /run/sandboxd as root, else $XDG_RUNTIME_DIR."""
    bind_cpus: bool = True
    """Whether commands run on as many processors as their sandbox's share; `nproc` tells it."""
    orphan_s: float = Field(3600, ge=1, le=_YEAR_S)
    """Seconds after which a sandbox that nobody has leased ends itself when no daemon speaks to it;
    one that is leased does so at the end of its lease."""
    local: LocalTable = Field(default_factory=LocalTable)
    """The local backend."""
    docker: DockerTable = Field(default_factory=DockerTable)
    """The docker backend."""
    kubernetes: KubernetesTable = Field(default_factory=KubernetesTable)
    """The kubernetes backend."""


class LimitsTable(Table):
    """Bounds over all pools together."""

    max_sandboxes: int = Field(1000, ge=1, le=100_000)
    """How many sandboxes may exist at once, over all pools."""


class WayOutTable(Table):
    """What sandboxes may take of their ways out: `network` and forwards."""

    wider: bool = True
    """Whether a lease may reach more than its template's `network`."""
    forwards: bool = True
    """Whether leases may have forwards, each to one address that the caller names."""
    connections: int = Field(64, ge=1, le=10_000)
    """Connections of one sandbox that may be open at once."""
    opens_per_s: float = Field(50, gt=0, le=10_000)
    """Connections that one sandbox may open a second, after a burst of `connections`."""
    connect_s: float = Field(10, gt=0, le=300)
    """Seconds to look a name up, and again to reach what it names."""
    idle_s: float = Field(300, ge=1, le=86400)
    """Seconds without a byte after which a connection is closed."""
    total_mb: int = Field(0, ge=0, le=1 << 30)
    """MiB that may pass over a sandbox's life, both ways together; 0: no bound."""


class LogTable(Table):
    """Logs."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level that is logged."""
    format: Literal["auto", "json", "plain"] = "auto"
    """Form of the log lines; `auto`: for people on a terminal, JSON elsewhere."""


class TelemetryTable(Table):
    """Who else is told what goes on."""

    otlp_endpoint: Url = ""
    """Where spans of leases, commands and cells are sent (OTLP over HTTP, with the extra `otel`),
    as `http://collector:4318`; empty: nowhere."""


class ResourcesTable(Table):
    """Limits of one sandbox."""

    cpu: float = Field(1.0, gt=0, le=1024)
    """Cores."""
    memory_mb: int = Field(512, ge=32, le=1 << 24)
    """Memory in MiB."""
    pids: int = Field(256, ge=32, le=1 << 22)
    """Processes and threads."""
    disk_mb: int = Field(2048, ge=1, le=1 << 30)
    """What it may write, in MiB."""
    gpu: int = Field(0, ge=0, le=64)
    """GPUs."""


class NetworkTable(Table):
    """What a sandbox may reach."""

    kind: Literal["none", "internet", "allow"]
    allow: list[AllowedHost] = []

    @model_validator(mode="after")
    def _allow_needs_hosts(self) -> NetworkTable:
        if (self.kind == "allow") != bool(self.allow):
            msg = 'must be "none", "internet" or {allow = ["HOST:PORT", …]} with at least one host'
            raise ValueError(msg)
        return self


class PoolTable(Table):
    """How much stock a pool keeps."""

    ready: int = Field(0, ge=0, le=100_000)
    """Warm sandboxes to keep in stock."""
    max: int = Field(64, ge=1, le=100_000)
    """Sandboxes that may exist, in whatever state."""
    starting: int = Field(4, ge=1, le=256)
    """Sandboxes that may be starting at once."""
    queue: int = Field(1000, ge=0, le=100_000)
    """Leases that may wait; more are told `capacity`."""

    @model_validator(mode="after")
    def _stock_fits(self) -> PoolTable:
        if self.ready > self.max:
            msg = f"`ready` ({self.ready}) is over `max` ({self.max})"
            raise ValueError(msg)
        return self


class MountTable(Table):
    """A folder or file of the machine that sandboxes see."""

    source: AbsolutePath
    """Where it lies on the machine; must be there when a sandbox is made."""
    target: AbsolutePath
    """Where sandboxes see it."""
    read_only: bool = True
    """Whether sandboxes may only read it."""


Network = Annotated[NetworkTable, BeforeValidator(_network)]


class TemplateTable(Table):
    """A named kind of sandbox."""

    image: Filled
    """local: `"host"` or the folder of an unpacked root; docker, kubernetes: an image reference."""
    resources: ResourcesTable = Field(default_factory=ResourcesTable)
    """Limits of one sandbox."""
    env: Environment = {}
    """Environment of every command; a lease's lies over it."""
    workdir: AbsolutePath = "/workspace"
    """Where commands start and relative paths begin; made if missing."""
    user: Text = ""
    """Whom commands run as; empty: the image's own user."""
    network: Network = Field(default_factory=lambda: NetworkTable(kind="none"))
    """`"none"`, `"internet"` or `{allow = ["HOST:PORT", "*.DOMAIN", "10.0.0.0/8:5432"]}`."""
    forwards: dict[PortName, ForwardTarget] = {}
    """Ports inside, on 127.0.0.1, each to one address outside: `{"8000" = "http://10.0.0.5:8000"}`;
    every lease has them, beside those that it asks for."""
    runtime: Text = ""
    """runc, runsc, kata: what the engine or the cluster knows; empty: its default."""
    capabilities: Literal["image", "none"] = "image"
    """Root's rights inside: the guest's own, or none."""
    kernels: list[Name] = Field([], max_length=16)
    """Jupyter kernels already running in warm sandboxes, by the names of their kernelspecs; a lease
    with another image has those alone that it asks for."""
    kernel_preload: list[ModuleName] = Field([], max_length=64)
    """Modules that those of Python have imported already, in this order; a cell still imports them,
    in no time."""
    setup: list[Filled] = Field([], max_length=64)
    """Commands run once per sandbox before it is warm, as root unless `user` is set."""
    setup_timeout_s: float = Field(300, gt=0, le=1800)
    """Seconds that all of `setup` together may take."""
    mounts: list[MountTable] = Field([], max_length=32)
    """Folders and files of the machine that sandboxes see."""
    shm_mb: int = Field(0, ge=0, le=1 << 24)
    """Size of /dev/shm in MiB, which counts as memory; 0: half of `resources.memory_mb`."""
    pull: Literal["missing", "always", "never"] = "missing"
    """When the image is pulled."""
    timeout_s: float = Field(3600, gt=0, le=_YEAR_S)
    """Hard life of a lease that names none, in seconds."""
    max_timeout_s: float = Field(86400, gt=0, le=_YEAR_S)
    """The longest hard life a lease may ask for."""
    idle_timeout_s: float = Field(600, ge=0, le=_YEAR_S)
    """Idle seconds after which a lease ends; 0: never."""
    pool: PoolTable = Field(default_factory=PoolTable)
    """Warm stock and queue."""
    kubernetes: PodTable = Field(default_factory=PodTable)
    """What its pods have besides; for the kubernetes backend alone."""
    mcp_servers: dict[Name, McpServerTable] = {}
    """MCP servers that its sandboxes have."""
    trusted_ports: bool = False
    """Pages from ports inside come without `Content-Security-Policy: sandbox`."""

    @model_validator(mode="after")
    def _preload_has_kernels(self) -> TemplateTable:
        if self.kernel_preload and not self.kernels:
            msg = '`kernel_preload` is for `kernels`, of which there are none; say ["python3"]'
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _life_fits(self) -> TemplateTable:
        if self.timeout_s > self.max_timeout_s:
            msg = (
                f"`timeout_s` ({self.timeout_s:g}) is over `max_timeout_s` ({self.max_timeout_s:g})"
            )
            raise ValueError(msg)
        return self


class SettingsFile(Table):
    """The whole file."""

    state_dir: AbsolutePath | None = None
    """Where leases are stored; unset: /var/lib/sandboxd as root, else $XDG_STATE_HOME/sandboxd."""
    installation: InstallationName = ""
    """Name on all that is ours, of 8 to 32 lower-case letters and digits: by it even a daemon whose
    state was lost finds what is to be removed. No two daemons may have the same. Empty: a name by
    chance, kept with the state."""
    server: ServerTable = Field(default_factory=ServerTable)
    """Where the daemon listens."""
    backend: BackendTable = Field(default_factory=BackendTable)
    """What makes the sandboxes."""
    limits: LimitsTable = Field(default_factory=LimitsTable)
    """Bounds over all pools together."""
    way_out: WayOutTable = Field(default_factory=WayOutTable)
    """What sandboxes may take of their ways out."""
    log: LogTable = Field(default_factory=LogTable)
    """Logs."""
    telemetry: TelemetryTable = Field(default_factory=TelemetryTable)
    """Who else is told what goes on."""
    compat: CompatTable = Field(default_factory=CompatTable)
    """Foreign dialects."""
    templates: dict[Name, TemplateTable] = {}
    """Kinds of sandboxes, by name."""
    mcp_servers: dict[Name, SharedMcpServerTable] = {}
    """Shared MCP servers, by name."""


def is_secret(path: tuple[Any, ...]) -> bool:
    """Whether the value at this place of the file must never be shown."""
    return not {"api_keys", "env", "registries"}.isdisjoint(path)


def inner_table(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The table that a field of this type holds, and how the reference writes the step into it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    steps: dict[Any, str] = {dict: ".NAME", list: "[]"}
    for argument in get_args(annotation):
        if isinstance(argument, type) and issubclass(argument, BaseModel):
            return argument, steps.get(get_origin(annotation), "")
    return None, ""
