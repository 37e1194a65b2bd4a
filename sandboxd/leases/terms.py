"""From a wish to terms: what a lease asks for, resolved against its template. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace

from sandboxd.errors import SandboxdError
from sandboxd.leases.seen_servers import servers_of
from sandboxd.model.claim import ClaimFile
from sandboxd.model.command import Command
from sandboxd.model.lease import LeaseTerms
from sandboxd.model.mcp_server import McpServer
from sandboxd.model.template import BoxSpec, KernelTerms, Network, Resources, Template
from sandboxd.model.way_out import Forward, ForwardOrder, Headers
from sandboxd.wire.codes import ErrorCode, Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWish:
    """What a caller asked for; None stands for what the template says. Times in seconds.

    start: what runs from the beginning, its output kept under its id like any command's.
    """

    template: str = ""
    image: str | None = None
    resources: Resources | None = None
    network: Network | None = None
    runtime: str | None = None
    kernels: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: tuple[ClaimFile, ...] = field(default=(), repr=False)
    workdir: str | None = None
    user: str | None = None
    start: Command | None = field(default=None, repr=False)
    forwards: Mapping[int, ForwardOrder] = field(default_factory=dict)
    mcp_servers: tuple[str, ...] | tuple[McpServer, ...] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    idle_timeout_s: float | None = None
    grading_s: float = 0
    wait_timeout_s: float = 60
    wait: bool = True
    run_id: str | None = None
    group_id: str | None = None
    rollout_id: str | None = None
    priority: int = 0
    idempotency_key: str | None = None
    body_digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOrder:
    """A wish made definite. The late-bound parts that no store may see stand apart."""

    terms: LeaseTerms
    secrets: Mapping[str, str] = field(repr=False)
    files: tuple[ClaimFile, ...] = field(repr=False)
    wait: bool
    wait_timeout_s: float
    start: Command | None = field(default=None, repr=False)
    forward_headers: Mapping[int, Headers] = field(default_factory=dict, repr=False)


def resolve(
    wish: LeaseWish,
    templates: Mapping[str, Template],
    *,
    direct: Container[str] = ("internet", "allow"),
    shared: Container[str] = (),
) -> LeaseOrder:
    """Raises `bad_request` for an unknown template or server and for times over the template's.

    direct: the kinds of networks that boxes are on by themselves. All others lead through the
    guest, bind late, and are no part of a box. shared: names of MCP servers at the top of the
    configuration.
    """
    template = _template(wish, templates)
    network = template.spec.network if wish.network is None else wish.network
    boxed = template.spec.boxed(direct)
    spec, cold_because = _spec(
        replace(wish, network=network.boxed(direct)),
        boxed,
        kernel_terms=template.kernel_terms(template.spec.kernel_terms.preload),
    )
    timeout_s = template.timeout_s if wish.timeout_s is None else wish.timeout_s
    if timeout_s == -1:
        timeout_s = template.max_timeout_s
    if timeout_s > template.max_timeout_s:
        raise too_long(timeout_s, template.max_timeout_s)
    forwards = {port: ForwardOrder(url=url) for port, url in template.forwards.items()}
    forwards |= wish.forwards
    idle_s = template.idle_timeout_s if wish.idle_timeout_s is None else wish.idle_timeout_s
    terms = LeaseTerms(
        template=template.name,
        spec=spec,
        env={**template.env, **wish.env},
        workdir=template.workdir if wish.workdir is None else wish.workdir,
        user=template.user if wish.user is None else wish.user,
        capabilities=template.capabilities,
        labels=wish.labels,
        timeout_s=timeout_s,
        max_timeout_s=template.max_timeout_s,
        idle_timeout_s=idle_s,
        grading_s=wish.grading_s,
        run_id=wish.run_id,
        group_id=wish.group_id,
        rollout_id=wish.rollout_id,
        priority=wish.priority,
        idempotency_key=wish.idempotency_key,
        body_digest=wish.body_digest,
        cold_because=cold_because,
        network=network,
        forwards=tuple(forward_of(port, forwards[port]) for port in sorted(forwards)),
        mcp_servers=servers_of(wish, template, shared=shared),
    )
    return LeaseOrder(
        terms=terms,
        secrets=wish.secrets,
        files=wish.files,
        wait=wish.wait,
        wait_timeout_s=wish.wait_timeout_s,
        start=wish.start,
        forward_headers={port: order.headers for port, order in forwards.items()},
    )


def forward_of(port: int, order: ForwardOrder) -> Forward:
    """What may be stored of a forward."""
    return Forward(
        port=port, url=order.url, header_names=tuple(sorted(name.lower() for name in order.headers))
    )


def too_long(timeout_s: float, most_s: float) -> SandboxdError:
    """A life that the template does not allow."""
    return SandboxdError(
        ErrorCode.BAD_REQUEST,
        f"timeout_s {timeout_s:g} is over the template's max_timeout_s {most_s:g}",
        details={"field": "timeout_s", "max_timeout_s": most_s},
    )


def unfit(error: SandboxdError) -> SandboxdError:
    """Why a box did not take what a lease asked for: the caller's doing, for no agent has acted."""
    if "field" in error.details:  # it says what by itself
        return error
    code = ErrorCode.BAD_REQUEST if error.code.startswith("file_") else error.code
    return SandboxdError(
        code,
        f"files, workdir or user: {error.detail}",
        fault=Fault.CLIENT,
        mask=True,
        details=error.details,
    )


def _template(wish: LeaseWish, templates: Mapping[str, Template]) -> Template:
    if wish.template:
        if wish.template in templates:
            return templates[wish.template]
        known = ", ".join(sorted(templates)) or "none"
        raise SandboxdError(
            ErrorCode.BAD_REQUEST,
            f"there is no template {wish.template!r}; the configuration has: {known}",
            details={"field": "template", "templates": sorted(templates)},
        )
    for template in templates.values():
        if template.spec.image == wish.image:
            return template
    if templates:  # an image alone borrows everything else from the first template
        return next(iter(templates.values()))
    raise SandboxdError(ErrorCode.BAD_REQUEST, "the configuration has no template at all")


def _spec(
    wish: LeaseWish, spec: BoxSpec, *, kernel_terms: KernelTerms
) -> tuple[BoxSpec, tuple[str, ...]]:
    """The box that is needed, and the fields in which it differs from the template's: kernels too,
    where some are wanted that it has not. Another image may not have the template's kernels, nor
    what they preload: it starts those alone that are asked for.
    """
    cold_because: list[str] = []
    for name in ("image", "resources", "network", "runtime"):
        wanted = getattr(wish, name)
        if wanted is not None and wanted != getattr(spec, name):
            spec = replace(spec, **{name: wanted})
            cold_because.append(name)
    if "image" in cold_because:
        spec = replace(spec, kernels=(), mcp_servers=(), kernel_terms=KernelTerms())
        kernel_terms = replace(kernel_terms, preload=())
    if wish.kernels is not None and Counter(wish.kernels) - Counter(spec.kernels):
        spec = replace(spec, kernels=wish.kernels, kernel_terms=kernel_terms)
        cold_because.append("kernels")
    return spec, tuple(cold_because)
