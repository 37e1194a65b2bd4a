"""The ways out of leases: set up before a claim, changed while leased, closed with the lease.

Says what a lease may ask for; what a connection may do is the way out's own business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from sandboxd.backends.protocol import Capabilities
from sandboxd.egress.environment import PROXY_PORT
from sandboxd.egress.forwarding import OpenForward
from sandboxd.egress.gate import check_forward
from sandboxd.egress.limits import WayOutLimits
from sandboxd.egress.outside import Outside
from sandboxd.egress.rules import Refused, Rules
from sandboxd.egress.targets import read_forward
from sandboxd.egress.way_out import PROXY, Policy, WayOut, Witness
from sandboxd.errors import SandboxdError
from sandboxd.guest.client import Guest
from sandboxd.guest.ports import Listener
from sandboxd.leases.admissible import check_network
from sandboxd.leases.back_office import BackOffice
from sandboxd.leases.tenancy import Tenancy
from sandboxd.leases.terms import forward_of
from sandboxd.model.lease import LeaseTerms
from sandboxd.model.template import Network, Template
from sandboxd.model.way_out import Forward, ForwardOrder, Headers
from sandboxd.wire.codes import ErrorCode

log = structlog.get_logger(__name__)

_FORWARD = "forward-"
_MOST_FORWARDS = 32  # a guest has 64 listeners


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOutSettings:
    """What an operator decides.

    wider: whether a lease may reach more than its template says. forwards: whether it may have any.
    """

    limits: WayOutLimits = field(default_factory=WayOutLimits)
    wider: bool = True
    forwards: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """A change of what a leased sandbox may reach. None and empty leave things as they are."""

    network: Network | None = None
    add: Mapping[int, ForwardOrder] = field(default_factory=dict)
    remove: frozenset[int] = frozenset()

    def applied_to(self, terms: LeaseTerms) -> LeaseTerms:
        """The terms after it."""
        forwards = {f.port: f for f in terms.forwards if f.port not in self.remove}
        forwards |= {port: forward_of(port, order) for port, order in self.add.items()}
        return replace(
            terms,
            network=self.network or terms.network,
            forwards=tuple(forwards[port] for port in sorted(forwards)),
        )

    def headers_after(self, headers: Mapping[int, Headers]) -> dict[int, Headers]:
        """The values of the forwards' headers after it."""
        kept = {port: each for port, each in headers.items() if port not in self.remove}
        return kept | {port: order.headers for port, order in self.add.items()}


class WaysOut:
    """See the module."""

    def __init__(self, office: BackOffice, *, outside: Outside, settings: WayOutSettings) -> None:
        self._office = office
        self._outside = outside
        self._settings = settings

    def check(self, terms: LeaseTerms, *, template: Template) -> None:
        """Whether a caller may have this. Raises `not_supported`, `forbidden`, `bad_request`.

        template: the lease's, whose own forwards are the operator's.
        """
        capabilities = self._office.backend.capabilities()
        check_network(terms.network, capabilities)
        if len(terms.forwards) > _MOST_FORWARDS:
            raise _wrong("forwards", f"at most {_MOST_FORWARDS}")
        if terms.network.boxed(capabilities.direct_networks) != terms.spec.network:
            raise SandboxdError(
                ErrorCode.CONFLICT,
                "network: this sandbox is on a network of its own, which is fixed when it is made: "
                "lease another one",
                details={"field": "network"},
            )
        try:
            rules = Rules.of(terms.network)
        except ValueError as error:
            raise _wrong("network", str(error)) from None
        wider = not rules.within(Rules.of(template.spec.network))
        if wider and not self._settings.wider:
            raise _forbidden("network", "it reaches more than its template, and leases may not")
        for forward in terms.forwards:
            by_caller = template.forwards.get(forward.port) != forward.url
            self._check_forward(forward, capabilities, by_caller=by_caller)

    def _check_forward(
        self, forward: Forward, capabilities: Capabilities, *, by_caller: bool
    ) -> None:
        if not capabilities.way_out:
            raise SandboxdError(
                ErrorCode.NOT_SUPPORTED,
                "forwards: boxes here have no way out",
                details={"field": "forwards"},
            )
        if by_caller and not self._settings.forwards:
            raise _forbidden("forwards", "they are switched off here (`way_out.forwards`)")
        try:
            target = read_forward(forward.url)
        except ValueError as error:
            raise _wrong("forwards", f"{forward.port}: {error}") from None
        if target.scheme == "tcp" and forward.header_names:
            raise _wrong("forwards", f"{forward.port}: bytes (tcp://) have no headers")
        try:
            check_forward(target, self._outside)
        except Refused as refusal:
            raise _forbidden("forwards", str(refusal)) from None

    async def listen(
        self, guest: Guest, terms: LeaseTerms, *, changed: bool = False, kept: bool = False
    ) -> int | None:
        """Have the guest listen for all that the terms say; returns the proxy's port, if there is
        one. Asks nothing of a guest that needs no listener, unless it had some (`changed`).

        kept: the proxy's port stays what it is. Raises `bad_request` for a forward's port that
        cannot be had, `not_supported` for a guest that is too old, GuestLost.
        """
        wanted = [Listener(_name(forward), forward.port) for forward in terms.forwards]
        taken = {forward.port for forward in terms.forwards}
        if has_proxy(terms):
            free = not kept and PROXY_PORT not in taken
            wanted.append(Listener(PROXY, PROXY_PORT if free else 0))
        if not wanted and not changed:
            return None
        answers = await self._set(guest, wanted)
        if any(answer.name == PROXY and answer.error for answer in answers):
            wanted[-1] = Listener(PROXY, 0)
            answers = await self._set(guest, wanted)
        for answer in answers:
            if answer.error:
                what = f"port {answer.port}" if answer.name != PROXY else "the proxy"
                raise _wrong("forwards", f"{what} cannot be listened on inside ({answer.error})")
        return next((answer.port for answer in answers if answer.name == PROXY), None)

    async def relisten(
        self, guest: Guest, terms: LeaseTerms, *, instead_of: LeaseTerms
    ) -> int | None:
        """As `listen`, for a guest that listens for other terms; it does so again if this fails."""
        had = has_proxy(instead_of)
        try:
            return await self.listen(guest, terms, changed=True, kept=had)
        except SandboxdError:
            await self.listen(guest, instead_of, changed=True, kept=had)
            raise

    async def _set(self, guest: Guest, wanted: Iterable[Listener]) -> list[Listener]:
        try:
            return await guest.set_listeners(wanted)
        except SandboxdError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            raise SandboxdError(
                ErrorCode.NOT_SUPPORTED,
                "this sandbox was made by an older version, whose guest has no way out",
                details={"field": "network"},
            ) from error

    def open(self, tenancy: Tenancy) -> None:
        """Begin, change or end the way out of a leased sandbox, as its terms are now."""
        terms = tenancy.lease.terms
        policy = policy_of(terms, tenancy)
        if tenancy.way_out is not None:
            tenancy.way_out.change(policy)
            return
        if not has_proxy(terms) and not terms.forwards:
            return
        tenancy.way_out = WayOut(
            tenancy.guest,
            policy=policy,
            outside=self._outside,
            limits=self._settings.limits,
            metrics=self._office.metrics,
            witness=Witness(note=partial(_note, tenancy), used=tenancy.touch),
            traffic=tenancy.traffic,
        )
        self._office.start(tenancy.way_out.run, name=f"way-out-{tenancy.lease.id}")


def has_proxy(terms: LeaseTerms) -> bool:
    """Whether the guest leads out: not where the box itself is on a network."""
    return terms.network.kind != "none" and terms.spec.network.kind == "none"


def policy_of(terms: LeaseTerms, tenancy: Tenancy) -> Policy:
    """What a way out goes by. Raises ValueError for terms that were never checked."""
    rules = Rules.of(terms.network) if has_proxy(terms) else Rules("none")
    forwards = {
        _name(forward): OpenForward.of(forward, tenancy.forward_headers.get(forward.port))
        for forward in terms.forwards
    }
    return Policy(rules, forwards)


def _name(forward: Forward) -> str:
    return f"{_FORWARD}{forward.port}"


def _note(tenancy: Tenancy, event: str, **facts: object) -> None:
    tenancy.note(event, **facts)
    log.info(event, sandbox_id=tenancy.lease.id, **facts)


def _wrong(name: str, text: str) -> SandboxdError:
    return SandboxdError(ErrorCode.BAD_REQUEST, f"{name}: {text}", details={"field": name})


def _forbidden(name: str, text: str) -> SandboxdError:
    return SandboxdError(ErrorCode.FORBIDDEN, f"{name}: {text}", details={"field": name})
