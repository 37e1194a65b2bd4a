"""How requests end that came to no lease, and what their callers hear."""

from __future__ import annotations

from sandboxd.errors import SandboxdError
from sandboxd.leases.endings import Endings
from sandboxd.leases.tenancy import Tenancy
from sandboxd.leases.terms import LeaseOrder
from sandboxd.model.lease import LeaseState
from sandboxd.pool.warm_pool import WarmPool
from sandboxd.wire.codes import END_VERDICTS, EndReason, ErrorCode, Verdict

NOBODY = "nobody waited for it any more"


class Refusals:
    """Ends requests that wait. Synchronous."""

    def __init__(self, endings: Endings) -> None:
        self._endings = endings

    def withdraw(self, tenancy: Tenancy, reason: EndReason) -> None:
        """The request ends without a box, by somebody's will."""
        if not tenancy.lease.over:
            detail = tenancy.unwanted_because
            self._endings.end_queued(tenancy, reason, END_VERDICTS[reason], detail)
            tenancy.error = tenancy.over_error()

    def refuse(self, tenancy: Tenancy, error: SandboxdError) -> None:
        """The request gets an error. One that was waited for leaves no trace, so that it may be
        sent again; one that was answered with an id shows its end under that id.
        """
        if tenancy.lease.state is LeaseState.QUEUED:
            tenancy.error = error
            verdict = Verdict(error.code, error.fault, error.mask)
            self._endings.end_queued(tenancy, EndReason.MAKE_FAILED, verdict, error.detail)


def not_in_time(
    pool: WarmPool, order: LeaseOrder, *, position: int, count: int = 1
) -> SandboxdError:
    """What a request hears that waited in vain. position: where it stood; 0 was next."""
    if (outage := pool.experience.outage) is not None:
        return SandboxdError(outage.code, outage.detail, retry_after_s=outage.retry_after_s)
    wait_s = pool.expected_wait_s(position)
    status = pool.status()
    wanted = "no sandbox" if count == 1 else f"no {count} sandboxes together"
    return SandboxdError(
        ErrorCode.CAPACITY,
        f"{wanted} of template {order.terms.template!r} came free within "
        f"{order.wait_timeout_s:g} s: {status.leased} are leased, {status.making} are being made, "
        f"{status.max} may be",
        retry_after_s=max(1.0, min(wait_s, 30.0)),
        details={"position": position, "expected_wait_s": wait_s},
    )


def cut_short(error: BaseException) -> SandboxdError:
    """The error as one of ours; what is none of ours cut the request short."""
    if isinstance(error, SandboxdError):
        return error
    return SandboxdError(ErrorCode.INTERNAL, "the request was cut short")


def shutting_down() -> SandboxdError:
    """What a caller hears who comes while the daemon goes."""
    return SandboxdError(
        ErrorCode.SHUTTING_DOWN,
        "this daemon is shutting down; leases live on, ask again in a moment",
        retry_after_s=2.0,
    )
