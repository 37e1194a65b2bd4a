"""Why the cluster makes no pod, or does not start one: whose fault, and the mend. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sandboxd.backends.kubernetes.pods import Pod, Waiting
from sandboxd.backends.kubernetes.talking.server import Refused, refused_call
from sandboxd.backends.kubernetes.watching.verdicts import Word
from sandboxd.backends.parts.pull_words import Cause, cause_of
from sandboxd.backends.parts.start_words import start_failed
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode, Fault

# Nodes try these again by themselves, and rightly so.
_PULLING = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"})
_CREATING = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "PostStartHookError",
    }
)
# These will never come to a good end.
_HOPELESS = {
    "InvalidImageName": "the node does not take this reference",
    "ErrImageNeverPull": "the node does not have it, and it is not to be pulled",
    "ImageInspectError": "what the node has of it is broken",
    "ErrImageInspect": "what the node has of it is broken",
}
_PULLS = {
    Cause.DIGEST: "what came is not what its digest says",
    Cause.PLATFORM: "its registry has none for this node's platform",
    Cause.DENIED: "its registry wants credentials that may read it, or it does not exist: "
    "name a secret in the template's `kubernetes.image_pull_secrets`",
    Cause.MISSING: "its registry has no such image or tag",
    Cause.INVALID: "the node does not take this reference",
}
_NOT_STARTED = frozenset({"StartError", "ContainerCannotRun"})
_NO_ROOM = re.compile(r"\AOutOf|\AUnexpectedAdmissionError\Z|\ANode(Affinity|Name|Ports)\Z")
_QUOTA = re.compile(r"exceeded quota|insufficient quota", re.IGNORECASE)
_RUNTIME = re.compile(r"runtimeclass", re.IGNORECASE)
_SECURITY = re.compile(r"violates PodSecurity", re.IGNORECASE)


def create_refused(refusal: Refused, image: str) -> SandboxdError:
    """The error for a pod of `image` that the API server does not take."""
    if refusal.status == 403 and _QUOTA.search(refusal.detail):
        return SandboxdError(
            ErrorCode.CAPACITY,
            f"the namespace's quota is used up ({refusal.detail})",
            retry_after_s=5.0,
        )
    if _RUNTIME.search(refusal.detail) and refusal.status in {403, 422}:
        return SandboxdError(
            ErrorCode.NOT_SUPPORTED, f"the cluster has no such runtime class ({refusal.detail})"
        )
    if refusal.status == 403 and _SECURITY.search(refusal.detail):
        return SandboxdError(
            ErrorCode.START_FAILED,
            f"the namespace admits no such pod ({refusal.detail}): it needs the level `baseline`",
            details={"image": image},
        )
    if refusal.status in {400, 422}:
        return SandboxdError(
            ErrorCode.START_FAILED,
            f"image {image!r}: the cluster does not take its pod ({refusal.detail}): see the "
            "template's table `kubernetes`",
            fault=Fault.TASK,
            details={"image": image},
        )
    return refused_call(refusal)


def trouble_of(pod: Pod, image: str, guest_image: str) -> SandboxdError | None:
    """The error for a pod that will not start, where that is certain by now."""
    for waiting in pod.waiting:
        name = guest_image if waiting.is_guest else image
        if waiting.reason in _HOPELESS:
            return _no_image(name, _HOPELESS[waiting.reason], waiting, words=waiting.message)
        if waiting.reason in _PULLING:
            why = _PULLS.get(cause_of(waiting.message))
            if why is not None:
                return _no_image(name, why, waiting, words=waiting.message)
    ended = pod.guest_end
    if ended is not None and ended.exit_code != 0:
        return SandboxdError(
            ErrorCode.START_FAILED,
            f"the guest could not be put in place: its container ended with {ended.exit_code} "
            f"({ended.message or ended.reason}); is `backend.kubernetes.guest_image` ours?",
        )
    if pod.end is not None and pod.end.reason in _NOT_STARTED:
        return start_failed(pod.end.message or pod.end.reason, image, who="the node")
    if _NO_ROOM.search(pod.reason):
        return SandboxdError(
            ErrorCode.CAPACITY,
            f"its node did not take the pod after all ({pod.reason}: {pod.message})",
            retry_after_s=1.0,
        )
    return None


def never_ran(pod: Pod, error: SandboxdError) -> bool:
    """Whether its node failed at starting one of its containers, as one does whose kubelet is
    started anew, and nobody but it can be blamed: nothing has run, so that it can be made again.
    error: what there is to say of it.
    """
    if error.code is not ErrorCode.START_FAILED or error.fault is not Fault.INFRA:
        return False
    if pod.end is not None and pod.end.exit_code == 0 and not pod.end.has_run:
        return True
    ends = (pod.end, pod.guest_end)
    return any(end is not None and end.reason in _NOT_STARTED for end in ends)


def is_stuck(pod: Pod) -> bool:
    """Whether its node has failed at something that it will try again."""
    return any(waiting.reason in _PULLING | _CREATING for waiting in pod.waiting)


def stuck(
    pod: Pod, image: str, guest_image: str, *, words: Sequence[Word], patience_s: float
) -> SandboxdError:
    """The error for a pod that did not start in time. words: its events, the oldest first."""
    for waiting in pod.waiting:
        if waiting.reason in _PULLING:
            name = guest_image if waiting.is_guest else image
            told = _pull_words(words, name) or waiting.message
            why = _PULLS.get(cause_of(told))
            sentence = why or "its registry does not answer as one, or not in time"
            return _no_image(name, sentence, waiting, words=told, is_task=why is not None)
        if waiting.reason in _CREATING:
            return start_failed(waiting.message or waiting.reason, image, who="the node")
    last = next((word for word in reversed(words) if word.reason.startswith("Failed")), None)
    told = f" ({last.reason}: {last.message})" if last else ""
    return SandboxdError(
        ErrorCode.START_FAILED,
        f"image {image!r}: the sandbox was not ready within {patience_s:g} s{told}",
        details={"image": image},
    )


def no_room(words: str) -> SandboxdError:
    """The error for a pod that no node takes, in the scheduler's words."""
    return SandboxdError(
        ErrorCode.CAPACITY, f"no node of the cluster takes it: {words}", retry_after_s=5.0
    )


def _no_image(
    name: str, why: str, waiting: Waiting, *, words: str, is_task: bool = True
) -> SandboxdError:
    """The guest's own image is nobody's task."""
    mine = waiting.is_guest
    mend = ": see `backend.kubernetes.guest_image`" if mine else ""
    return SandboxdError(
        ErrorCode.IMAGE_UNAVAILABLE,
        f"image {name}: {why}{mend}" + (f" ({words})" if words else ""),
        fault=Fault.TASK if is_task and not mine else Fault.INFRA,
        mask=True,
        details={"image": name},
    )


def _pull_words(words: Sequence[Word], name: str) -> str:
    """What the node said of its last attempt, which names the image and the cause."""
    told = (word.message for word in reversed(words) if word.reason == "Failed")
    return next((message for message in told if name in message and "pull" in message), "")
