"""From the checked tables about Kubernetes to the frozen nouns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandboxd.model.template import PodOptions
from sandboxd.settings.tables.kubernetes_keys import (
    ClusterWay,
    GuestVolumeWord,
    KubernetesTable,
    PodTable,
    PolicyWord,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """The kubernetes backend's own; empty leaves the choice to it. Times in seconds."""

    namespace: str = ""
    kubeconfig: Path | None = None
    context: str = ""
    guest_image: str = "sandboxd/guest:latest"
    guest: ClusterWay = "auto"
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
    image_pull_secrets: tuple[str, ...] = ()
    allow_images: tuple[str, ...] = ()


def kubernetes_options(table: KubernetesTable) -> KubernetesOptions:
    """What the table says."""
    return KubernetesOptions(
        namespace=table.namespace,
        kubeconfig=Path(table.kubeconfig) if table.kubeconfig else None,
        context=table.context,
        guest_image=table.guest_image,
        guest=table.guest,
        guest_volume=table.guest_volume,
        seccomp_profile=table.seccomp_profile,
        network_policy=table.network_policy,
        from_addresses=tuple(table.from_addresses),
        starting=table.starting,
        ready_timeout_s=table.ready_timeout_s,
        unschedulable_s=table.unschedulable_s,
        cpu_request=table.cpu_request,
        memory_request=table.memory_request,
        prefetch_images=table.prefetch_images,
        image_pull_secrets=tuple(table.image_pull_secrets),
        allow_images=tuple(table.allow_images),
    )


def pod_options(table: PodTable) -> PodOptions:
    """What the table adds to pods; the fields as canonical JSON, so that equal ones are equal."""
    fields: dict[str, Any] = dict(table.spec)
    added: dict[str, Any] = {
        "runtimeClassName": table.runtime_class,
        "nodeSelector": table.node_selector,
        "tolerations": table.tolerations,
        "affinity": table.affinity,
        "priorityClassName": table.priority_class,
        "imagePullSecrets": [{"name": name} for name in table.image_pull_secrets],
    }
    fields |= {name: value for name, value in added.items() if value}
    text = json.dumps(fields, sort_keys=True) if fields else ""
    return PodOptions(
        fields=text,
        gpu_resource=table.gpu_resource,
        accept_unenforced_network=table.accept_unenforced_network,
    )
