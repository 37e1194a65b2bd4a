"""What the daemon tells of sandboxes, files, pools and itself: frozen, tolerant of newer fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Something told by the daemon. `raw` is all of it, also what this SDK does not know."""

    NESTED: ClassVar[Mapping[str, type[Record]]] = {}

    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        """From the object as it travels; what it lacks has its default."""
        names = cls.__dataclass_fields__
        known = {name: value for name, value in told.items() if name in names}
        for name, kind in cls.NESTED.items():
            if known.get(name) is not None:
                known[name] = kind.from_json(known[name])
        return cls(**{**known, "raw": told})


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlace(Record):
    """Where a waiting lease stands."""

    position: int = 0
    expected_wait_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseEnd(Record):
    """Why a lease ended, and the verdict on it. `at` in Unix time."""

    reason: str = ""
    code: str | None = None
    fault: str | None = None
    mask: bool = False
    detail: str | None = None
    at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo(Record):
    """A sandbox and its lease. Points in time are Unix seconds.

    state: queued, making, leased, ending or ended. warm: it came from stock; else `cold_because`
    names the fields that its template does not have. network: what it may reach; proxy: where
    programs inside find the way there. limits: by name `enforced`, `watched` or
    `none`.
    """

    NESTED: ClassVar[Mapping[str, type[Record]]] = {"queue": QueuePlace, "end": LeaseEnd}

    id: str = ""
    template: str | None = None
    image: str | None = None
    state: str = ""
    phase: str | None = None
    queue: QueuePlace | None = None
    created_at: float | None = None
    leased_at: float | None = None
    expires_at: float | None = None
    idle_expires_at: float | None = None
    run_id: str | None = None
    group_id: str | None = None
    rollout_id: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    backend: str | None = None
    warm: bool | None = None
    cold_because: list[str] | None = None
    lease_wait_s: float | None = None
    limits: Mapping[str, str] = field(default_factory=dict)
    endpoint: str | None = None
    network: str | Mapping[str, Any] | None = None
    proxy: str | None = None
    forwards: Mapping[str, str] = field(default_factory=dict)
    end: LeaseEnd | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings(Record):
    """What a sandbox uses at this moment; None where that cannot be had."""

    cpu_s: float | None = None
    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    memory_limit_bytes: int | None = None
    pids: int | None = None
    disk_free_bytes: int | None = None
    load_1m: float | None = None
    execs_running: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelInfo(Record):
    """A kernel. state: starting, idle, busy, restarting or dead."""

    kernel_id: str = ""
    spec: str = ""
    state: str = ""
    execution_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion(Record):
    """What could stand in place of the code between two cursors, in characters."""

    matches: list[str] = field(default_factory=list)
    cursor_start: int = 0
    cursor_end: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection(Record):
    """What is known of a name. data: by media type; `text` is the one that is plain."""

    found: bool = False
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """In words, with the kernel's colours; empty if there are none."""
        return str(self.data.get("text/plain") or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardInfo(Record):
    """A port inside that reaches one address outside.

    header_names: of headers that are added outside. ready: false once the daemon lost their values
    by being started anew: give the forward again.
    """

    port: int = 0
    url: str = ""
    header_names: list[str] = field(default_factory=list)
    ready: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo(Record):
    """One entry of the sandbox's file system.

    type: file, directory, link or other. size: in bytes. mode: the permission bits. name_b64: the
    name's bytes, where they are no UTF-8. target: of a link.
    """

    path: str = ""
    name: str = ""
    name_b64: str | None = None
    type: str = "file"
    size: int = 0
    mode: int | None = None
    user: str | None = None
    group: str | None = None
    modified_at: float | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolInfo(Record):
    """How a pool stands; `max` counts everything that exists, in whatever state.

    state: `ok`, `resting` after a make failed, `open` while makes fail again and again. last_error:
    of the last make that failed.
    """

    template: str = ""
    ready: int = 0
    making: int = 0
    leased: int = 0
    disposing: int = 0
    queued: int = 0
    target: int = 0
    max: int = 0
    state: str = ""
    last_error: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInfo(Record):
    """An image as the machine of the sandboxes has it.

    state: present, pulling or failed. used_at: when the last sandbox was made of it, in Unix
    seconds. in_use: sandboxes of it that exist. error: why the last attempt to get it failed.
    progress: how far it has come, for people.
    """

    reference: str = ""
    state: str = ""
    digest: str | None = None
    size_bytes: int | None = None
    used_at: float | None = None
    in_use: int = 0
    error: str = ""
    progress: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateInfo(Record):
    """A named kind of sandbox; `raw` has all its settings."""

    name: str = ""
    image: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaInfo(Record):
    """What the leases of a key may take together, and take now.

    limits: by `leases`, `cpu` (cores), `memory_mb` and `creates_per_minute`, None for no bound.
    used: by the first three of them. creates_left: how many may be asked for right now.
    """

    key: str = ""
    limits: Mapping[str, float | None] = field(default_factory=dict)
    used: Mapping[str, float] = field(default_factory=dict)
    creates_left: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionInfo(Record):
    """What the daemon is and can do."""

    version: str = ""
    api: Any = None
    guest_protocols: list[int] = field(default_factory=list)
    backend: Any = None
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxToken(Record):
    """A key for one sandbox alone. `url` has it in its path, for clients that send no header."""

    token: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(Record):
    """What a release of many did: the ids that ended, and those that could not be."""

    released: list[str] | int = field(default_factory=list)
    failed: list[Any] | int = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo(Record):
    """A run, and what its leases do.

    state: active or lost. expires_at: when it is lost unless it is heard of, or when it was; Unix
    seconds. ended: how many of its leases ended, by reason.
    """

    run_id: str = ""
    state: str = ""
    ttl_s: float = 0.0
    began_at: float | None = None
    expires_at: float | None = None
    leased: int = 0
    queued: int = 0
    ended: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Record):
    """Something that happened in the installation; `raw` has all its facts.

    type: lease.queued, lease.leased, lease.expiring, lease.ended, run.lost, pool.fault, pool.ready,
    image.pulled, or gap: some that were missed are no longer known. at, expires_at: Unix seconds.
    """

    NESTED: ClassVar[Mapping[str, type[Record]]] = {"end": LeaseEnd}

    id: str = ""
    type: str = ""
    at: float = 0.0
    run_id: str | None = None
    sandbox_id: str | None = None
    template: str | None = None
    group_id: str | None = None
    rollout_id: str | None = None
    phase: str | None = None
    reason: str | None = None
    expires_at: float | None = None
    end: LeaseEnd | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerInfo(Record):
    """An MCP server that a sandbox has. state: stopped (starts with its first call), starting,
    running or dead. restarts: after it had ended. replicas: sandboxes of a shared one.
    """

    name: str = ""
    scope: str = ""
    transport: str = ""
    state: str = ""
    restarts: int = 0
    sessions: int = 0
    replicas: int | None = None
    url: str = ""
