"""What an operator decides of this backend, as its own parts read it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sandboxd.backends.parts.installation import refuse_odd_installation

Way = Literal["auto", "address", "forward"]
GuestVolume = Literal["copy", "image"]
GuestVolumeWord = Literal["auto", "copy", "image"]
PolicyWord = Literal["probe", "enforced", "none"]

_LABEL_CHARS = 63  # that the value of a label may have


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """Which cluster, and how pods are made in it.

    guest_image: where pods get the guest agent from. namespace: empty: that of the credentials.
    kubeconfig, context: None and empty: the pod's own account, else KUBECONFIG and its own choice.
    guest: how guests are reached: at their pods' addresses, or through the API server.
    guest_volume: how the guest's program gets into pods; `auto`: as an image if that can be had.
    seccomp_profile: of the nodes, below the kubelet's own folder for them; empty: RuntimeDefault.
    network_policy: whether the cluster enforces network policies; `probe` finds out.
    from_addresses: ranges from which guests are reached; empty: our own address.
    starting: pods that start at once. ready_timeout_s: for a pod's guest to answer.
    unschedulable_s: that a pod which no node takes waits for one.
    cpu_request, memory_request: parts of a limit that are asked of the scheduler, from 0 to 1.
    prefetch_images: whether nodes are to have what templates name before its first pod.
    orphan_s: without a word, after which a box that is not leased ends itself.
    image_pull_secrets: of the namespace, with which images are pulled.
    allow_images: patterns of what callers may name beside the images of templates.
    secret: for the tokens of guests. keys_dir: see `read_access`; None: the machine's own place
    for temporary files, for a program that is soon over.
    """

    installation: str
    guest_image: str
    namespace: str = ""
    kubeconfig: Path | None = None
    context: str = ""
    guest: Way = "auto"
    guest_volume: GuestVolumeWord = "auto"
    seccomp_profile: str = ""
    network_policy: PolicyWord = "probe"
    from_addresses: tuple[str, ...] = ()
    starting: int = 16
    ready_timeout_s: float = 120.0
    unschedulable_s: float = 30.0
    cpu_request: float = 1.0
    memory_request: float = 1.0
    prefetch_images: bool = False
    orphan_s: float = 3600.0
    image_pull_secrets: tuple[str, ...] = ()
    allow_images: tuple[str, ...] = ()
    secret: bytes = field(default=b"", repr=False)
    keys_dir: Path | None = None

    def __post_init__(self) -> None:
        """Refuse a name that no label can hold."""
        refuse_odd_installation(self.installation, most_chars=_LABEL_CHARS)

    @property
    def tag(self) -> str:
        """The short name of this installation, in the names of its objects."""
        return re.sub("[^a-z0-9]", "x", self.installation[:8].lower())
