"""Why a box died, as far as evidence goes. Pure: readings in, a verdict out; never a guess."""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd.backends.protocol import Death
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import EndReason, ErrorCode, Fault

KILLED = 128 + 9
# The guest's own exit codes.
_NO_USER = 67
_TREE_STUCK = 70
LIFE_OVER = 71
ORPHANED = 72

# Signals that the kernel raises by itself in a process that errs: ILL, TRAP, ABRT, BUS, FPE, SEGV,
# XCPU, XFSZ, SYS. A guest that crashes for a mistake of ours dies of one of them too.
_CRASHES = frozenset({4, 5, 6, 7, 8, 11, 24, 25, 31})

# Near its own limit a box's memory is what was short; far below it, the host's was. Only where
# nobody counts how often it met that limit: what it wrote to files counts as memory too, and may
# have filled it once.
_NEAR_LIMIT = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a dead box. None where nobody saw it.

    exit_code: of its first process, 128 + signal if one ended it.
    at_own_limit: that the kernel killed its first process for want of memory, at the box's own
    limit (False: for want around it), in the words of the kernel's log.
    oom_kills_before: the counter as it stood before the end began.
    limit_hits, limit_hits_before: the same of how often it met its own limit of memory.
    words: the end of what the guest said last.
    asked_signals: that somebody had the engine send it; ours are not among them.
    was_removed: the engine no longer knows it, and that was not us.
    engine_broke: the engine stopped, or was started anew, around then.
    """

    box_id: str
    exit_code: int | None = None
    at_own_limit: bool | None = None
    oom_kills: int | None = None
    oom_kills_before: int = 0
    limit_hits: int | None = None
    limit_hits_before: int = 0
    memory_peak_bytes: int | None = None
    memory_limit_bytes: int = 0
    words: str = ""
    asked_signals: tuple[int, ...] = ()
    was_removed: bool = False
    engine_broke: bool = False


def judge(evidence: Evidence) -> Death:
    """The death that the evidence supports; `unknown`, and masked, where it supports none."""
    if own := _by_guest(evidence) or _by_engine(evidence):
        return own
    code = evidence.exit_code
    if code is None:
        return _unknown(evidence, "its first process is gone; nobody saw how it ended")
    if code == KILLED:
        return _killed(evidence)
    if 128 < code < 128 + 65:
        return _signalled(evidence, code - 128)
    return _unknown(evidence, f"its first process ended with {code}: {evidence.words}")


def _by_guest(evidence: Evidence) -> Death | None:
    """Where the guest itself ended the box, and said why by its exit code."""
    code = evidence.exit_code
    if code == LIFE_OVER:
        return Death(
            box_id=evidence.box_id,
            reason=EndReason.EXPIRED,
            fault=Fault.CLIENT,
            detail="the guest ended the sandbox at its hard end",
            evidence={"exit_code": code},
        )
    if code == _NO_USER:
        return Death(
            box_id=evidence.box_id,
            fault=Fault.TASK,
            detail=f"the image's own user cannot be found in it{_said(evidence)}",
            evidence={"exit_code": code},
        )
    if code == _TREE_STUCK:
        return _unknown(evidence, "a command's processes could not be killed after its deadline")
    if code == ORPHANED:
        return Death(
            box_id=evidence.box_id,
            fault=Fault.INFRA,
            detail="the guest heard no word from a daemon and ended the sandbox",
            evidence={"exit_code": code},
        )
    return None


def _by_engine(evidence: Evidence) -> Death | None:
    """Where an engine ended the box, by itself or at somebody's wish.

    An engine that stops ends what it runs by the same calls as its users: so it is asked first
    whether it still runs. Counters of memory say nothing beside either.
    """
    if evidence.engine_broke:
        return Death(
            box_id=evidence.box_id,
            reason=EndReason.NODE_LOST,
            fault=Fault.INFRA,
            detail="the container engine was stopped or started anew, and ended the sandbox",
            evidence={"exit_code": evidence.exit_code},
        )
    number = evidence.asked_signals[-1] if evidence.asked_signals else 0
    if number and evidence.exit_code in {None, 128 + number, KILLED}:
        return Death(
            box_id=evidence.box_id,
            detail=f"somebody ended it through the container engine (signal {number})",
            evidence={"exit_code": evidence.exit_code, "signal": number},
        )
    if evidence.was_removed:
        return _unknown(evidence, "somebody else removed it through the container engine")
    return None


def _killed(evidence: Evidence) -> Death:
    """SIGKILL from nobody we know of: out of memory, if the kernel's log says so of this very
    process, or a counter rose just then.
    """
    own = evidence.at_own_limit
    risen = (evidence.oom_kills or 0) - evidence.oom_kills_before
    if own is None:
        if evidence.oom_kills is None:
            return _unknown(evidence, "its first process was killed; nobody counted what was short")
        if risen <= 0:
            return _unknown(evidence, "its first process was killed from outside the sandbox")
        own = _met_its_limit(evidence)
    return Death(
        box_id=evidence.box_id,
        reason=EndReason.OOM,
        fault=Fault.AGENT if own else Fault.INFRA,
        mask=not own,
        detail="memory ran out" if own else "the host's memory ran out",
        evidence={
            "oom_kills": max(risen, 1),
            "memory_peak_bytes": evidence.memory_peak_bytes,
            "memory_limit_bytes": evidence.memory_limit_bytes,
        },
    )


def _met_its_limit(evidence: Evidence) -> bool:
    """Whether its own limit was what was short, by its counters."""
    if evidence.limit_hits is not None:
        return evidence.limit_hits > evidence.limit_hits_before
    return (evidence.memory_peak_bytes or 0) >= evidence.memory_limit_bytes * _NEAR_LIMIT


def _signalled(evidence: Evidence, number: int) -> Death:
    """By another signal than KILL. We send none, so somebody inside did, unless it is a crash."""
    if number in _CRASHES:
        return _unknown(evidence, f"its first process crashed (signal {number}){_said(evidence)}")
    return Death(
        box_id=evidence.box_id,
        fault=Fault.AGENT,
        mask=False,
        detail=f"a process inside ended the first one by signal {number}",
        evidence={"exit_code": evidence.exit_code, "signal": number},
    )


def _said(evidence: Evidence) -> str:
    return f": {evidence.words}" if evidence.words else ""


def _unknown(evidence: Evidence, detail: str) -> Death:
    return Death(
        box_id=evidence.box_id,
        detail=detail,
        evidence={"exit_code": evidence.exit_code, "oom_kills": evidence.oom_kills},
    )


def rebooted(box_id: str) -> Death:
    """The machine was started anew, and no box outlives that."""
    return Death(
        box_id=box_id,
        reason=EndReason.NODE_LOST,
        fault=Fault.INFRA,
        detail="the machine was started anew",
    )


def over_disk(box_id: str, *, used_bytes: int, limit_bytes: int) -> Death:
    """It wrote more than its limit."""
    return Death(
        box_id=box_id,
        reason=EndReason.DISK,
        fault=Fault.AGENT,
        mask=False,
        detail=f"it wrote {used_bytes} bytes to disk; its limit is {limit_bytes}",
        evidence={"disk_bytes": used_bytes, "disk_limit_bytes": limit_bytes},
    )


def forged(box_id: str, *, peer_pid: int, guest_pid: int) -> Death:
    """Something inside answers in the guest's place."""
    return Death(
        box_id=box_id,
        fault=Fault.AGENT,
        mask=False,
        detail="a process inside took the place of the guest's socket",
        evidence={"peer_pid": peer_pid, "guest_pid": guest_pid},
    )


def lost(death: Death | None) -> SandboxdError:
    """The error for whoever wants to reach a dead box."""
    if death is None:
        return SandboxdError(ErrorCode.SANDBOX_LOST, "the sandbox was removed")
    return SandboxdError(
        ErrorCode.SANDBOX_LOST,
        f"the sandbox died: {death.detail}",
        fault=death.fault,
        mask=death.mask,
        details={"reason": death.reason, "evidence": dict(death.evidence)},
    )


def ended_early(death: Death, image: str) -> SandboxdError:
    """The error for whoever had it made. No agent has acted yet: it was the image, or it was
    nobody's doing but ours.
    """
    return SandboxdError(
        ErrorCode.START_FAILED,
        f"image {image!r}: the sandbox ended while it started: {death.detail}",
        fault=Fault.TASK if death.fault is Fault.TASK else Fault.INFRA,
        mask=True,
        details={"image": image, "evidence": dict(death.evidence)},
    )
