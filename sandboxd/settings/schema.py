"""The TOML file's shape at the border: pydantic models that refuse what they do not know.

The string below a field is its line in the configuration reference. Values are strict, as TOML
has types.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sandboxd.settings.nouns import BackendKind

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_ALLOWED_HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?\Z")
_ENV_BYTES = 1 << 20
_YEAR_S = 366 * 86400


def _no_nul(text: str) -> str:
    if "\0" in text:
        msg = "must not hold a NUL character"
        raise ValueError(msg)
    return text


def _name(text: str) -> str:
    if not _NAME.match(text):
        msg = "must be 1 to 63 letters, digits, '.', '_' or '-', beginning with a letter or digit"
        raise ValueError(msg)
    return text


def _absolute(text: str) -> str:
    if not text.startswith("/"):
        msg = "must be an absolute path, beginning with '/'"
        raise ValueError(msg)
    return text


def _environment(env: dict[str, str]) -> dict[str, str]:
    if any(not name or "=" in name for name in env):
        msg = "a variable's name must not be empty nor hold '='"
        raise ValueError(msg)
    if sum(len(name.encode()) + len(value.encode()) for name, value in env.items()) > _ENV_BYTES:
        msg = "must be at most 1 MiB together"
        raise ValueError(msg)
    return env


def _allowed_host(text: str) -> str:
    if not _ALLOWED_HOST.match(text):
        msg = "must be HOST, HOST:PORT or *.DOMAIN"
        raise ValueError(msg)
    return text


def _url(text: str) -> str:
    if text and not re.match(r"https?://[^\s/?#]+(/[^\s?#]*)?\Z", text):
        msg = "must be an http:// or https:// URL without query, or empty"
        raise ValueError(msg)
    return text


def _network(value: object) -> object:
    """`"none"` and `"internet"` are short for a table."""
    if isinstance(value, str):
        return {"kind": value}
    if isinstance(value, dict) and "kind" not in value:
        return {"kind": "allow", **value}
    return value


Text = Annotated[str, AfterValidator(_no_nul)]
Name = Annotated[str, AfterValidator(_name)]
Filled = Annotated[Text, Field(min_length=1)]
AbsolutePath = Annotated[Text, AfterValidator(_absolute)]
Environment = Annotated[dict[Text, Text], AfterValidator(_environment)]
AllowedHost = Annotated[str, AfterValidator(_allowed_host)]
Url = Annotated[str, AfterValidator(_url)]


class Table(BaseModel):
    """A TOML table."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class ApiKeyTable(Table):
    """One caller's key."""

    name: Name
    """Who it is, as logs and objects name the caller."""
    key_file: Filled | None = None
    """A file that holds the key and nothing else."""
    key: Filled | None = Field(None, repr=False)
    """The key itself; `key_file` keeps it out of this file."""

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


class BackendTable(Table):
    """What makes the sandboxes."""

    kind: BackendKind = "local"
    """Which backend makes the sandboxes."""
    run_dir: AbsolutePath | None = None
    """Short folder for sockets; unset: one below /run/sandboxd as root, else $XDG_RUNTIME_DIR."""
    local: LocalTable = Field(default_factory=LocalTable)
    """The local backend."""


class LimitsTable(Table):
    """Bounds over all pools together."""

    max_sandboxes: int = Field(1000, ge=1, le=100_000)
    """How many sandboxes may exist at once, over all pools."""


class LogTable(Table):
    """Logs."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level that is logged."""
    format: Literal["auto", "json", "plain"] = "auto"
    """Form of the log lines; `auto`: for people on a terminal, JSON elsewhere."""


class DialectTable(Table):
    """How a foreign dialect's names map to ours."""

    images: dict[Filled, Name] = {}
    """Foreign image names to our templates; `"*"` for the rest."""


class CompatTable(Table):
    """Foreign dialects."""

    prime: DialectTable = Field(default_factory=DialectTable)
    """The prime-sandboxes dialect."""
    e2b: DialectTable = Field(default_factory=DialectTable)
    """The E2B dialect."""
    opensandbox: DialectTable = Field(default_factory=DialectTable)
    """The OpenSandbox dialect."""


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


class McpServerTable(Table):
    """An MCP server inside a sandbox."""

    command: list[Filled] = Field(min_length=1)
    """The server's argv; it speaks stdio."""
    scope: Literal["rollout", "shared"] = "rollout"
    """One per sandbox, or one for all."""
    prestart: bool = False
    """Already started in warm sandboxes; else on first use."""
    env: Environment = {}
    """Environment of the server."""
    cwd: Text = ""
    """Working directory; empty: the sandbox's."""


class SharedMcpServerTable(McpServerTable):
    """An MCP server that all sandboxes share."""

    template: Name
    """The template of the sandboxes that it runs in."""
    scope: Literal["rollout", "shared"] = "shared"
    """Always `shared` here."""


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
    """`"none"`, `"internet"` or `{allow = ["HOST:PORT", "*.DOMAIN"]}`."""
    runtime: Text = ""
    """runc, runsc, kata: what the engine knows; empty: its default."""
    capabilities: Literal["image", "none"] = "image"
    """Root's rights inside: the guest's own, or none."""
    kernels: list[Name] = []
    """Jupyter kernels already running in warm sandboxes."""
    setup: list[Filled] = []
    """Commands run once per sandbox before it is warm."""
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
    mcp_servers: dict[Name, McpServerTable] = {}
    """MCP servers that its sandboxes have."""
    trusted_ports: bool = False
    """Pages from ports inside come without `Content-Security-Policy: sandbox`."""

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
    server: ServerTable = Field(default_factory=ServerTable)
    """Where the daemon listens."""
    backend: BackendTable = Field(default_factory=BackendTable)
    """What makes the sandboxes."""
    limits: LimitsTable = Field(default_factory=LimitsTable)
    """Bounds over all pools together."""
    log: LogTable = Field(default_factory=LogTable)
    """Logs."""
    compat: CompatTable = Field(default_factory=CompatTable)
    """Foreign dialects."""
    templates: dict[Name, TemplateTable] = {}
    """Kinds of sandboxes, by name."""
    mcp_servers: dict[Name, SharedMcpServerTable] = {}
    """Shared MCP servers, by name."""


def is_secret(path: tuple[Any, ...]) -> bool:
    """Whether the value at this place of the file must never be shown."""
    return "api_keys" in path or "env" in path


def inner_table(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The table that a field of this type holds, and how the reference writes the step into it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    steps: dict[Any, str] = {dict: ".NAME", list: "[]"}
    for argument in get_args(annotation):
        if isinstance(argument, type) and issubclass(argument, BaseModel):
            return argument, steps.get(get_origin(annotation), "")
    return None, ""
