"""Why a pod ended, by its status and its events: whose doing, and what it proves. Pure.

Clusters name few causes by a code; what they say in sentences alone is matched here by the words
that kubelets and controllers have used for years. What matches nothing is `unknown`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sandboxd.backends.kubernetes.pods import ContainerEnd, Pod
from sandboxd.backends.kubernetes.records import BoxRecord
from sandboxd.backends.parts.deaths import KILLED, Evidence, judge
from sandboxd.backends.protocol import Death
from sandboxd.wire.codes import EndReason, Fault

_OWN_CODES = range(64, 80)  # a guest that ended by itself


class Cause(StrEnum):
    """What a cluster does to pods by itself."""

    DISK = "disk"  # it wrote more than its limit
    PRESSURE = "pressure"  # its node ran short
    PREEMPTED = "preempted"  # for a pod of a higher priority
    DRAINED = "drained"  # somebody empties its node
    NODE_LOST = "node_lost"  # its node does not answer, shuts down, or is no more


@dataclass(frozen=True, slots=True)
class Word:
    """One event of a pod."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class _Meaning:
    reason: EndReason
    fault: Fault
    sentence: str


_MEANINGS = {
    Cause.DISK: _Meaning(EndReason.DISK, Fault.AGENT, "it wrote more to disk than its limit"),
    Cause.PRESSURE: _Meaning(EndReason.EVICTED, Fault.INFRA, "its node ran short and evicted it"),
    Cause.PREEMPTED: _Meaning(
        EndReason.EVICTED, Fault.INFRA, "the scheduler gave its place to a pod of higher priority"
    ),
    Cause.DRAINED: _Meaning(EndReason.EVICTED, Fault.INFRA, "it was evicted through the API"),
    Cause.NODE_LOST: _Meaning(EndReason.NODE_LOST, Fault.INFRA, "its node was lost"),
}

# Reasons of the condition DisruptionTarget (clusters from 1.26 on), of a pod's status, of events.
_REASONS = {
    "PreemptionByScheduler": Cause.PREEMPTED,
    "Preempting": Cause.PREEMPTED,
    "Preempted": Cause.PREEMPTED,
    "EvictionByEvictionAPI": Cause.DRAINED,
    "DeletionByTaintManager": Cause.NODE_LOST,
    "DeletionByPodGC": Cause.NODE_LOST,
    "TaintManagerEviction": Cause.NODE_LOST,
    "NodeLost": Cause.NODE_LOST,
    "NodeShutdown": Cause.NODE_LOST,
    "Shutdown": Cause.NODE_LOST,
    "Evicted": Cause.PRESSURE,
    "TerminationByKubelet": Cause.PRESSURE,
}
_CANCELLED = re.compile("cancel", re.IGNORECASE)  # an eviction that was called off
_OVER_LIMIT = re.compile(
    r"exceed(s|ed) (the total limit|its local ephemeral storage limit|the limit)", re.IGNORECASE
)
_SURVIVED = re.compile(r"\Aoom_kills=([0-9]{1,9})\Z")
_NODE_ENDS = re.compile(r"node shutdown|node is shutting down", re.IGNORECASE)


def death_of(
    record: BoxRecord, pod: Pod | None, *, removed: bool, words: Sequence[Word] = ()
) -> Death:
    """The death that the evidence supports. pod: None where nobody knows it any more.

    removed: its pod is gone, and that was not us. words: the pod's events, the oldest first.
    """
    end = pod.end if pod is not None else None
    if end is not None and end.exit_code in _OWN_CODES:
        return _by_its_end(record, end)
    cause, told = _cause(pod, words)
    if cause is not None:
        return _caused(record, cause, told)
    if pod is not None and pod.is_going:
        return _unknown(record, "somebody deleted its pod", deleted_at=pod.deleted_at)
    if end is not None:
        return _by_its_end(record, end)
    if removed or pod is None:
        return _unknown(record, "its pod is gone; nobody saw how it ended")
    return _unknown(record, f"its pod ended: {pod.reason or pod.phase} {pod.message}".strip())


def _cause(pod: Pod | None, words: Sequence[Word]) -> tuple[Cause | None, str]:
    """What the cluster did, and its words for it. The pod's own status counts first."""
    told = [Word(pod.disruption, pod.message), Word(pod.reason, pod.message)] if pod else []
    for word in (*told, *reversed(words)):
        if word.reason == "TaintManagerEviction" and _CANCELLED.search(word.message):
            continue
        if _NODE_ENDS.search(word.message):
            return Cause.NODE_LOST, word.message
        cause = _REASONS.get(word.reason)
        if cause is Cause.PRESSURE and _OVER_LIMIT.search(word.message):
            return Cause.DISK, word.message
        if cause is not None:
            return cause, word.message
    return None, ""


def _caused(record: BoxRecord, cause: Cause, told: str) -> Death:
    meaning = _MEANINGS[cause]
    evidence: dict[str, str | int | float | None] = {"cause": str(cause), "node": record.node}
    if cause is Cause.DISK:
        evidence["disk_limit_bytes"] = record.disk_limit_bytes
    return Death(
        box_id=record.box_id,
        reason=meaning.reason,
        fault=meaning.fault,
        mask=meaning.fault is not Fault.AGENT,
        detail=f"{meaning.sentence} ({told.strip()})" if told.strip() else meaning.sentence,
        evidence=evidence,
    )


def _by_its_end(record: BoxRecord, end: ContainerEnd) -> Death:
    """By its first process's own end.

    A node says "out of memory" of any end of a container in which some process once ran out of it:
    so what the guest noted of such kills, while it lived on, counts against that word.
    """
    of_memory = end.exit_code == KILLED and end.reason == "OOMKilled"
    survived = _SURVIVED.search(end.message)
    if of_memory and survived is not None:
        return Death(
            box_id=record.box_id,
            detail="its first process was killed; its node names memory, which had run out before",
            evidence={"exit_code": end.exit_code, "oom_kills_before": int(survived[1])},
        )
    return judge(
        Evidence(
            box_id=record.box_id,
            exit_code=end.exit_code,
            at_own_limit=True if of_memory else None,
            memory_limit_bytes=record.memory_limit_bytes,
        )
    )


def _unknown(record: BoxRecord, detail: str, **evidence: str) -> Death:
    return Death(box_id=record.box_id, detail=detail, evidence={"node": record.node, **evidence})
