"""Templates: what a box of a pool is made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Literal

from sandboxd.model.mcp_server import McpServer

Capability = Literal["image", "none"]
Pull = Literal["missing", "always", "never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Limits of one box. Zero `gpu` asks for none."""

    cpu: float = 1.0
    memory_mb: int = 512
    pids: int = 256
    disk_mb: int = 2048
    gpu: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What a box may reach: nothing, an allow-list of `host[:port]`, or the internet."""

    kind: Literal["none", "internet", "allow"] = "none"
    allow: tuple[str, ...] = ()

    def boxed(self, direct: Container[str]) -> Network:
        """What of it a box itself is on. direct: the kinds that boxes are on without their guest's
        help; all others lead through the guest, and are no part of a box.
        """
        return self if self.kind in direct else Network()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder of the machine that boxes see. Only templates have them, so the operator vouches."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is run once in a box before it is warm, each command by `/bin/sh -c`, in order.

    env, workdir, user: as the template has them; user "" is root here. timeout_s: for all together.
    network: what it may reach through the guest, where the box itself is on none.
    """

    commands: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    workdir: str = ""
    user: str = ""
    timeout_s: float = 300
    network: Network = field(default_factory=Network)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTerms:
    """What kernels and MCP servers run with that are started in a box before anybody leases it.

    preload: modules that kernels of Python have imported by then. The rest as the template has it.
    """

    preload: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    workdir: str = ""
    user: str = ""
    capabilities: Capability = "image"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How much stock a pool keeps: `max` counts everything that exists, in whatever state."""

    ready: int = 0
    max: int = 64
    starting: int = 4
    queue: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOptions:
    """What a template says of its pods; for Kubernetes alone.

    fields: what is added to a pod's spec, as canonical JSON; empty: nothing. gpu_resource: what the
    cluster calls a GPU. accept_unenforced_network: whether its boxes may be where the cluster does
    not keep them off the network.
    """

    fields: str = ""
    gpu_resource: str = "nvidia.com/gpu"
    accept_unenforced_network: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSpec:
    """Everything that is fixed when a box is made. Two equal specs may share warm stock."""

    image: str
    resources: Resources = field(default_factory=Resources)
    network: Network = field(default_factory=Network)
    runtime: str = ""
    kernels: tuple[str, ...] = ()  # kernelspecs of Jupyter kernels that run in it already
    mcp_servers: tuple[McpServer, ...] = ()  # that run in it already
    kernel_terms: KernelTerms = field(default_factory=KernelTerms)  # of both; empty without any
    setup: Setup = field(default_factory=Setup)
    pull: Pull = "missing"
    mounts: tuple[Mount, ...] = ()
    shm_mb: int = 0  # of /dev/shm, which counts as memory; 0: half of the memory
    pod: PodOptions = field(default_factory=PodOptions)

    @property
    def prepared(self) -> bool:
        """Whether something is done in it before it is warm."""
        return bool(self.setup.commands or self.kernels or self.mcp_servers)

    def boxed(self, direct: Container[str]) -> BoxSpec:
        """What a backend is asked to make: without the network that leads through the guest. What
        the set-up may reach so goes with the set-up.
        """
        network = self.network.boxed(direct)
        if network == self.network:
            return self
        setup = self.setup
        if setup.commands:
            setup = replace(setup, network=self.network)
        return replace(self, network=network, setup=setup)

    def fingerprint(self) -> str:
        """Changes with anything that makes warm stock of the old spec unfit."""
        return _fingerprint(self)


@lru_cache(maxsize=1024)
def _fingerprint(spec: BoxSpec) -> str:
    """Each lease asks for one, and there are few specs."""
    text = json.dumps(asdict(spec), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A named kind of sandbox, as the configuration has it. Times in seconds.

    forwards: ports inside to addresses outside, which every lease of it has.
    """

    name: str
    spec: BoxSpec
    env: Mapping[str, str] = field(default_factory=dict)
    forwards: Mapping[int, str] = field(default_factory=dict)
    workdir: str = "/workspace"
    user: str = ""
    capabilities: Capability = "image"
    timeout_s: float = 3600
    max_timeout_s: float = 86400
    idle_timeout_s: float = 600
    pool: PoolSettings = field(default_factory=PoolSettings)
    mcp_servers: tuple[McpServer, ...] = ()  # that its leases see

    def kernel_terms(self, preload: tuple[str, ...] = ()) -> KernelTerms:
        """For what is started in its boxes before anybody leases them."""
        return KernelTerms(
            preload=preload,
            env=tuple(sorted(self.env.items())),
            workdir=self.workdir,
            user=self.user,
            capabilities=self.capabilities,
        )
