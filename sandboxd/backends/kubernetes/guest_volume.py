"""How the guest's program gets into pods: copied by the init container, or as a volume that is its
image, where the cluster has such volumes.
"""

from __future__ import annotations

from typing import Any

from sandboxd.backends.kubernetes.objects import pods_path
from sandboxd.backends.kubernetes.settings import GuestVolume, GuestVolumeWord, KubernetesSettings
from sandboxd.backends.kubernetes.talking.server import (
    ApiServer,
    Json,
    Refused,
    version_number,
)
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

_FIRST = (1, 33)  # where the API has them in their final form, whether or not they are switched on


async def choose_guest_volume(
    server: ApiServer, settings: KubernetesSettings, *, namespace: str, version: str
) -> GuestVolume:
    """As asked for, else by what the API server keeps of such a pod; nothing is made.

    Raises `not_supported` where an image volume was asked for and is not to be had, and
    `backend_unavailable`.
    """
    word: GuestVolumeWord = settings.guest_volume
    number = version_number(version) or (0, 0)
    if word == "copy" or (word == "auto" and number < _FIRST):
        return "copy"
    why = "drops the field"
    try:
        answer = await server.create(pods_path(namespace), _trial(settings), dryRun="All")
    except Refused as refusal:
        answer, why = {}, refusal.detail
    if _keeps_it(answer):
        return "image"
    if word == "image":
        raise SandboxdError(
            ErrorCode.NOT_SUPPORTED,
            f"the cluster ({version or 'of an unknown version'}) has no image volumes ({why}): set "
            '`backend.kubernetes.guest_volume = "copy"`',
        )
    return "copy"


def image_volume(name: str, reference: str) -> Json:
    """A volume of a pod that is an image."""
    return {"name": name, "image": {"reference": reference, "pullPolicy": "IfNotPresent"}}


def _trial(settings: KubernetesSettings) -> Json:
    image = settings.guest_image
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"sandboxd-{settings.tag}-volume-trial"},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "containers": [{"name": "sandbox", "image": image}],
            "volumes": [image_volume("guest", image)],
        },
    }


def _keeps_it(answer: Json) -> bool:
    """A server that has no such volumes drops the field without a word."""
    volumes: list[dict[str, Any]] = (answer.get("spec") or {}).get("volumes") or []
    return any("image" in volume for volume in volumes)
