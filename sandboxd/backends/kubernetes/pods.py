"""A pod as the API server tells of it, cut down to what matters here. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sandboxd.backends.kubernetes.creating import GUEST, SANDBOX
from sandboxd.backends.kubernetes.objects import BOX
from sandboxd.backends.kubernetes.talking.server import Json

_NEVER = ("1970-01-01", "0001-01-01")  # when nodes say that something began which did not


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEnd:
    """How a container ended, in the words of its node. message: also what the guest left to say.

    signal: 0 where that is not told. has_run: False for one that its node made and never started:
    a kubelet that was killed in between counts it as ended, with 0.
    """

    exit_code: int
    reason: str = ""
    message: str = ""
    signal: int = 0
    has_run: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Why a container does not run yet. is_guest: it is the one that brings the guest."""

    reason: str
    message: str
    is_guest: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of ours.

    image: what its sandbox is made of. address: its IP, empty until it has one. runs: the sandbox's
    container does. end: of it, once it has ended; guest_end: of the one before it. waiting: what is
    not running yet, and why.
    unschedulable: the scheduler's words where no node takes it. deleted_at: when somebody asked
    for its end, empty if nobody did. reason, message: of the pod as a whole, as for an eviction.
    disruption: why something other than its own programs ends it.
    """

    name: str
    uid: str
    box_id: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    phase: str = ""
    node: str = ""
    image: str = ""
    address: str = ""
    runs: bool = False
    end: ContainerEnd | None = None
    guest_end: ContainerEnd | None = None
    waiting: tuple[Waiting, ...] = ()
    unschedulable: str = ""
    deleted_at: str = ""
    reason: str = ""
    message: str = ""
    disruption: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing runs in it any more, or nothing is to."""
        return self.end is not None or self.phase in {"Failed", "Succeeded"} or self.is_going

    @property
    def is_going(self) -> bool:
        """Whether somebody asked for its end."""
        return self.deleted_at != ""

    @property
    def lives(self) -> bool:
        """Whether its sandbox runs, as far as its node has told."""
        return self.runs and not self.is_over


def pod_from(body: Json) -> Pod:
    """From the server's JSON."""
    meta, status, spec = body["metadata"], body.get("status") or {}, body.get("spec") or {}
    conditions = {str(each.get("type")): each for each in status.get("conditions") or ()}
    main = _status(status.get("containerStatuses"), SANDBOX)
    guest = _status(status.get("initContainerStatuses"), GUEST)
    labels: dict[str, str] = meta.get("labels") or {}
    return Pod(
        name=str(meta["name"]),
        uid=str(meta["uid"]),
        box_id=str(labels.get(BOX, "")),
        labels=labels,
        annotations=meta.get("annotations") or {},
        phase=str(status.get("phase") or ""),
        node=str(spec.get("nodeName") or ""),
        image=str(_status(spec.get("containers"), SANDBOX).get("image") or ""),
        address=str(status.get("podIP") or ""),
        runs="running" in _state(main),
        end=_end(main),
        guest_end=_end(guest),
        waiting=tuple(_waiting(guest, main)),
        unschedulable=_unschedulable(conditions),
        deleted_at=str(meta.get("deletionTimestamp") or ""),
        reason=str(status.get("reason") or ""),
        message=str(status.get("message") or ""),
        disruption=_disruption(conditions),
    )


def _status(statuses: Iterable[Json] | None, name: str) -> Json:
    return next((each for each in statuses or () if each.get("name") == name), {})


def _state(status: Json) -> Json:
    state: Json = status.get("state") or {}
    return state


def _end(status: Json) -> ContainerEnd | None:
    ended = _state(status).get("terminated")
    if ended is None:
        return None
    return ContainerEnd(
        exit_code=int(ended.get("exitCode") or 0),
        reason=str(ended.get("reason") or ""),
        message=str(ended.get("message") or ""),
        signal=int(ended.get("signal") or 0),
        has_run=not str(ended.get("startedAt") or _NEVER[0]).startswith(_NEVER),
    )


def _waiting(guest: Json, main: Json) -> Iterable[Waiting]:
    for status, is_guest in ((guest, True), (main, False)):
        waits = _state(status).get("waiting")
        if waits is not None:
            yield Waiting(
                reason=str(waits.get("reason") or ""),
                message=str(waits.get("message") or ""),
                is_guest=is_guest,
            )


def _unschedulable(conditions: Mapping[str, Json]) -> str:
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") != "False" or scheduled.get("reason") != "Unschedulable":
        return ""
    return str(scheduled.get("message") or "no node takes it")


def _disruption(conditions: Mapping[str, Json]) -> str:
    """Clusters from 1.26 on tell it as a condition of the pod."""
    found = conditions.get("DisruptionTarget") or {}
    return str(found.get("reason") or "") if found.get("status") == "True" else ""
