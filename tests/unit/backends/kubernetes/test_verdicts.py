"""Why a pod ended, by what clusters say: one table, from words that were seen."""

from __future__ import annotations

import pytest

from sandboxd.backends.kubernetes.pods import ContainerEnd, Pod
from sandboxd.backends.kubernetes.records import BoxRecord
from sandboxd.backends.kubernetes.watching.verdicts import Word, death_of
from sandboxd.wire.codes import EndReason, Fault

RECORD = BoxRecord(
    box_id="box-a",
    name="sandboxd-t-box-a",
    uid="u",
    address="10.0.0.9",
    node="n7",
    memory_limit_bytes=1 << 27,
    disk_limit_bytes=1 << 24,
)
_LIMIT = "Pod ephemeral local storage usage exceeds the total limit of containers 32Mi. "
_OLD_LIMIT = 'Container sandbox exceeded its local ephemeral storage limit "32Mi". '
_SHORT = "The node was low on resource: memory. Container sandbox was using 900Mi. "
_SHUTDOWN = "Pod was terminated in response to imminent node shutdown."

Facts = tuple[EndReason, Fault, bool]
DISK: Facts = (EndReason.DISK, Fault.AGENT, False)
EVICTED: Facts = (EndReason.EVICTED, Fault.INFRA, True)
NODE: Facts = (EndReason.NODE_LOST, Fault.INFRA, True)
UNKNOWN: Facts = (EndReason.DIED, Fault.UNKNOWN, True)
OOM: Facts = (EndReason.OOM, Fault.AGENT, False)


def pod(**told: object) -> Pod:
    return Pod(name=RECORD.name, uid="u", box_id="box-a", **told)  # type: ignore[arg-type]


def facts(found: Pod | None, *words: Word, removed: bool = False) -> Facts:
    death = death_of(RECORD, found, removed=removed, words=words)
    return death.reason, death.fault, death.mask


@pytest.mark.parametrize(
    ("found", "words", "wanted"),
    [
        (pod(phase="Failed", reason="Evicted", message=_LIMIT), (), DISK),
        (pod(phase="Failed", reason="Evicted", message=_OLD_LIMIT), (), DISK),
        (pod(phase="Failed", reason="Evicted", message=_SHORT), (), EVICTED),
        (pod(phase="Failed", disruption="TerminationByKubelet", message=_SHORT), (), EVICTED),
        (pod(phase="Failed", disruption="TerminationByKubelet", message=_SHUTDOWN), (), NODE),
        (pod(phase="Failed", reason="Terminated", message=_SHUTDOWN), (), NODE),
        (pod(deleted_at="t", disruption="PreemptionByScheduler"), (), EVICTED),
        (pod(deleted_at="t", disruption="EvictionByEvictionAPI"), (), EVICTED),
        (pod(deleted_at="t", disruption="DeletionByTaintManager"), (), NODE),
        (pod(deleted_at="t", disruption="DeletionByPodGC"), (), NODE),
        (pod(deleted_at="t"), (Word("Preempted", "by default/rival on node n7"),), EVICTED),
        (pod(deleted_at="t"), (Word("TaintManagerEviction", "Marking for deletion"),), NODE),
        (pod(deleted_at="t"), (Word("TaintManagerEviction", "Cancelling deletion"),), UNKNOWN),
        (pod(deleted_at="t"), (Word("Killing", "Stopping container sandbox"),), UNKNOWN),
        (pod(phase="Failed", reason="NodeLost"), (), NODE),
        (pod(phase="Failed"), (), UNKNOWN),
    ],
)
def test_what_a_cluster_does_to_pods_is_told_by_its_own_words(
    found: Pod, words: tuple[Word, ...], wanted: Facts
) -> None:
    assert facts(found, *words) == wanted


@pytest.mark.parametrize(
    ("end", "wanted"),
    [
        (ContainerEnd(exit_code=137, reason="OOMKilled"), OOM),
        (ContainerEnd(exit_code=137, reason="OOMKilled", message="oom_kills=1"), UNKNOWN),
        (ContainerEnd(exit_code=137, reason="Error"), UNKNOWN),
        (ContainerEnd(exit_code=1, reason="OOMKilled"), UNKNOWN),
        (ContainerEnd(exit_code=71, reason="Error"), (EndReason.EXPIRED, Fault.CLIENT, True)),
        (ContainerEnd(exit_code=72, reason="Error"), (EndReason.DIED, Fault.INFRA, True)),
        (ContainerEnd(exit_code=139, reason="Error"), UNKNOWN),
    ],
)
def test_a_first_process_that_ended_is_judged_by_its_status_and_its_nodes_word(
    end: ContainerEnd, wanted: Facts
) -> None:
    assert facts(pod(phase="Failed", end=end)) == wanted


def test_what_the_guest_says_of_its_own_end_beats_what_the_cluster_does_meanwhile() -> None:
    ended = pod(deleted_at="t", end=ContainerEnd(exit_code=71))
    assert facts(ended, Word("Preempted"))[0] is EndReason.EXPIRED


def test_a_pod_that_nobody_knows_any_more_is_unknown() -> None:
    assert facts(None, removed=True) == UNKNOWN


def test_a_verdict_names_the_node_and_the_limit() -> None:
    death = death_of(RECORD, pod(phase="Failed", reason="Evicted", message=_LIMIT), removed=False)
    assert death.evidence == {"cause": "disk", "node": "n7", "disk_limit_bytes": 1 << 24}
    assert "32Mi" in death.detail
