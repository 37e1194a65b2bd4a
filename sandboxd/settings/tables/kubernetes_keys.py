"""The tables of Kubernetes: `[backend.kubernetes]` and `[templates.NAME.kubernetes]`."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from sandboxd.settings.fields import AbsolutePath, Filled, Table, Text

ClusterWay = Literal["auto", "address", "forward"]
GuestVolumeWord = Literal["auto", "copy", "image"]
PolicyWord = Literal["probe", "enforced", "none"]

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")
# What makes a pod one box of ours, kept in and reached as such.
_OURS = frozenset(
    {
        "containers", "initContainers", "ephemeralContainers", "restartPolicy",
        "automountServiceAccountToken", "enableServiceLinks", "shareProcessNamespace",
        "terminationGracePeriodSeconds", "activeDeadlineSeconds", "hostNetwork", "hostPID",
        "hostIPC", "hostUsers", "securityContext", "volumes", "nodeName", "subdomain", "hostname",
    }
)  # fmt: skip
_KEYED = {
    "nodeSelector": "node_selector",
    "tolerations": "tolerations",
    "affinity": "affinity",
    "priorityClassName": "priority_class",
    "imagePullSecrets": "image_pull_secrets",
    "runtimeClassName": "runtime_class",
}


def _dns_label(text: str) -> str:
    if text and not _DNS_LABEL.match(text):
        msg = "must be lower-case letters, digits and '-', at most 63"
        raise ValueError(msg)
    return text


def _dns_name(text: str) -> str:
    if text and not _DNS_NAME.match(text):
        msg = "must be a name as Kubernetes has them: lower-case letters, digits, '-' and '.'"
        raise ValueError(msg)
    return text


def _below(text: str) -> str:
    if text.startswith("/") or ".." in text.split("/"):
        msg = "must be the name of a file below the kubelet's own folder for such profiles"
        raise ValueError(msg)
    return text


def _range(text: str) -> str:
    ipaddress.ip_network(text)
    return text


def _further(spec: dict[str, Any]) -> dict[str, Any]:
    for name in spec:
        if name in _OURS:
            msg = f"`{name}` is the backend's own; leave it out"
            raise ValueError(msg)
        if name in _KEYED:
            msg = f"`{name}` is the key `{_KEYED[name]}` beside `spec`"
            raise ValueError(msg)
    return spec


ObjectName = Annotated[Text, AfterValidator(_dns_name)]
Namespace = Annotated[Text, AfterValidator(_dns_label)]
AddressRange = Annotated[Text, AfterValidator(_range)]
ProfileName = Annotated[Text, AfterValidator(_below)]
PodFields = Annotated[dict[str, Any], AfterValidator(_further)]


class KubernetesTable(Table):
    """The kubernetes backend."""

    namespace: Namespace = ""
    """Where pods are made; empty: the namespace of the credentials."""
    kubeconfig: AbsolutePath | None = None
    """File with credentials, read again when they are refused; unset: the account of the daemon's
    own pod, else `KUBECONFIG`, else `~/.kube/config`."""
    context: Text = ""
    """Context of that file; empty: its current one."""
    guest_image: Filled = "sandboxd/guest:latest"
    """Image that pods copy the guest agent from (`make guest-image`); pin it by its digest."""
    guest: ClusterWay = "auto"
    """How guests are reached: at the `address` of their pods, or by `forward` through the API
    server; `auto`: by address where the daemon runs in the cluster."""
    guest_volume: GuestVolumeWord = "auto"
    """How the guest agent gets into pods: a `copy` by their init container, or its `image` as a
    volume, which needs Kubernetes 1.33 or newer with image volumes switched on (from 1.35 on they
    are) and nodes whose runtime has them; `auto`: as a volume where the API server takes it."""
    seccomp_profile: ProfileName = ""
    """Filter of system calls for sandboxes, a file below the kubelet's `seccomp` folder on every
    node (`sandboxd seccomp-profile` prints ours); empty: `RuntimeDefault`, the node's own."""
    network_policy: PolicyWord = "probe"
    """Whether the cluster enforces NetworkPolicies; `probe`: two pods find out at each start."""
    from_addresses: list[AddressRange] = []
    """Ranges from which guests may be reached, as the pods see them; empty: the daemon's own
    address."""
    starting: int = Field(16, ge=1, le=1000)
    """Pods that start at once, over all pools."""
    ready_timeout_s: float = Field(120, ge=1, le=3600)
    """Seconds for a pod to be scheduled and started, its image pulled, and its guest to answer."""
    unschedulable_s: float = Field(30, ge=0, le=3600)
    """Seconds that a pod which no node takes waits for one; longer where nodes are added on
    demand."""
    cpu_request: float = Field(1.0, ge=0, le=1)
    """Part of `resources.cpu` that is reserved on a node; the limit stays whole."""
    memory_request: float = Field(1.0, ge=0, le=1)
    """Part of `resources.memory_mb` that is reserved on a node; under 1 a node can run short."""
    prefetch_images: bool = False
    """Whether nodes pull what templates name before its first pod, and keep it: by a DaemonSet for
    each image, on the nodes that its templates' pods may go to."""
    image_pull_secrets: list[ObjectName] = []
    """Names of the namespace's secrets with which the images of all pods are pulled, the guest's
    among them; those of a template come on top."""
    allow_images: list[Filled] = []
    """Patterns of images that callers may name, as `backend.docker.allow_images`."""


class PodTable(Table):
    """What a template says of its pods."""

    runtime_class: ObjectName = ""
    """RuntimeClass; `runtime` of the template is the same, but checked against the cluster's."""
    node_selector: dict[Filled, Text] = {}
    """Labels that a node must have."""
    tolerations: list[dict[str, Any]] = []
    """Taints of nodes that do not keep its pods away."""
    affinity: dict[str, Any] = {}
    """Affinity, as a pod's spec has it."""
    priority_class: ObjectName = ""
    """PriorityClass."""
    image_pull_secrets: list[ObjectName] = []
    """Names of the namespace's secrets for registries."""
    gpu_resource: Filled = "nvidia.com/gpu"
    """What the cluster calls a GPU; `resources.gpu` says how many."""
    spec: PodFields = {}
    """Further fields of the pod's spec, merged with the backend's own."""
    accept_unenforced_network: bool = False
    """Whether `network = "none"` or a list is accepted where the cluster enforces no
    NetworkPolicies, so that its sandboxes do reach what the cluster's network leads to."""
