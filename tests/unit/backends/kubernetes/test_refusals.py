"""What a cluster's refusals and a node's complaints mean: whose fault, and when that is certain."""

from __future__ import annotations

import pytest

from sandboxd.backends.kubernetes.pods import ContainerEnd, Pod, Waiting
from sandboxd.backends.kubernetes.refusals import (
    create_refused,
    is_stuck,
    never_ran,
    stuck,
    trouble_of,
)
from sandboxd.backends.kubernetes.talking.server import Refused
from sandboxd.backends.kubernetes.watching.verdicts import Word
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode, Fault

IMAGE, GUEST_IMAGE = "registry.test/evals:1", "registry.test/guest:1"
_START, _FORMAT = "failed to start containerd task: ", "exec format error"
_PULL = 'rpc error: code = Unknown desc = failed to pull and unpack image "{}": {}'


def waiting(reason: str, message: str = "", *, is_guest: bool = False) -> Pod:
    waits = Waiting(reason=reason, message=message, is_guest=is_guest)
    return Pod(name="p", uid="u", box_id="box-a", waiting=(waits,))


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("InvalidImageName", "couldn't parse image reference"),
        ("ErrImageNeverPull", "Container image is not present with pull policy of Never"),
        ("ErrImagePull", _PULL.format(IMAGE, "not found")),
        ("ErrImagePull", _PULL.format(IMAGE, "pull access denied, repository does not exist")),
        ("ErrImagePull", _PULL.format(IMAGE, "no matching manifest for linux/arm64")),
    ],
)
def test_an_image_that_will_never_come_is_the_tasks_fault_at_once(
    reason: str, message: str
) -> None:
    error = trouble_of(waiting(reason, message), IMAGE, GUEST_IMAGE)
    assert error is not None
    assert (error.code, error.fault, error.mask) == (
        ErrorCode.IMAGE_UNAVAILABLE,
        Fault.TASK,
        True,
    )
    assert IMAGE in error.detail


@pytest.mark.parametrize("words", ["dial tcp: connection refused", "429 Too Many Requests", ""])
def test_a_registry_that_may_answer_later_is_given_time(words: str) -> None:
    pod = waiting("ErrImagePull", words)
    assert trouble_of(pod, IMAGE, GUEST_IMAGE) is None
    assert is_stuck(pod)
    error = stuck(pod, IMAGE, GUEST_IMAGE, words=[], patience_s=20)
    assert (error.code, error.fault) == (ErrorCode.IMAGE_UNAVAILABLE, Fault.INFRA)


def test_what_a_node_said_earlier_counts_where_it_now_only_waits() -> None:
    said = [Word("Failed", f'Failed to pull image "{IMAGE}": unauthorized'), Word("BackOff")]
    pod = waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"')
    error = stuck(pod, IMAGE, GUEST_IMAGE, words=said, patience_s=20)
    assert (error.code, error.fault) == (ErrorCode.IMAGE_UNAVAILABLE, Fault.TASK)


def test_the_guests_own_image_is_nobodys_task() -> None:
    error = trouble_of(waiting("InvalidImageName", is_guest=True), IMAGE, GUEST_IMAGE)
    assert error is not None
    assert error.fault is Fault.INFRA
    assert "guest_image" in error.detail


def test_a_guest_that_could_not_be_put_in_place_is_ours() -> None:
    ended = ContainerEnd(exit_code=2, message="unknown verb")
    pod = Pod(name="p", uid="u", box_id="b", guest_end=ended)
    error = trouble_of(pod, IMAGE, GUEST_IMAGE)
    assert error is not None
    assert (error.code, error.fault) == (ErrorCode.START_FAILED, Fault.INFRA)


@pytest.mark.parametrize(
    ("status", "words", "code"),
    [
        (403, "exceeded quota: compute, requested: cpu=1", ErrorCode.CAPACITY),
        (403, 'pod rejected: RuntimeClass "kata" not found', ErrorCode.NOT_SUPPORTED),
        (403, 'violates PodSecurity "restricted:latest"', ErrorCode.START_FAILED),
        (403, 'User "x" cannot create resource "pods"', ErrorCode.BACKEND_UNAVAILABLE),
        (422, "spec.tolerations[0].operator: Unsupported value", ErrorCode.START_FAILED),
        (404, 'namespaces "nope" not found', ErrorCode.BACKEND_UNAVAILABLE),
    ],
)
def test_what_the_server_does_not_take_is_told_as_what_it_is(
    status: int, words: str, code: ErrorCode
) -> None:
    assert create_refused(Refused(status, reason="", detail=words), IMAGE).code is code


def test_a_node_that_has_no_room_after_all_is_a_want_of_capacity() -> None:
    pod = Pod(name="p", uid="u", box_id="b", phase="Failed", reason="OutOfcpu", message="m")
    error = trouble_of(pod, IMAGE, GUEST_IMAGE)
    assert error is not None
    assert error.code is ErrorCode.CAPACITY


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (ContainerEnd(exit_code=128, reason="StartError", message=_START + "killed"), True),
        (ContainerEnd(exit_code=128, reason="StartError", message=_START + _FORMAT), False),
        (ContainerEnd(exit_code=0, reason="Completed"), False),
        (ContainerEnd(exit_code=137, reason="Error", message=_START + "killed"), False),
    ],
)
def test_a_start_that_its_node_alone_failed_at_may_be_tried_again(
    end: ContainerEnd, *, expected: bool
) -> None:
    pod = Pod(name="p", uid="u", box_id="box-a", end=end)
    error = trouble_of(pod, IMAGE, GUEST_IMAGE) or SandboxdError(ErrorCode.START_FAILED, "ended")
    assert never_ran(pod, error) is expected


def test_a_guest_that_its_node_could_not_start_may_be_tried_again() -> None:
    end = ContainerEnd(exit_code=128, reason="StartError", message=_START + "signal: killed")
    pod = Pod(name="p", uid="u", box_id="box-a", guest_end=end)
    error = trouble_of(pod, IMAGE, GUEST_IMAGE)
    assert error is not None
    assert never_ran(pod, error)
