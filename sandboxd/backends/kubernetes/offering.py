"""What boxes can have on a cluster, and what is refused. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NoReturn

from sandboxd.backends.kubernetes.settings import KubernetesSettings
from sandboxd.backends.protocol import Capabilities, LimitKind
from sandboxd.errors import SandboxdError
from sandboxd.model.template import BoxSpec
from sandboxd.wire.codes import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a cluster was found to have.

    runtimes: its runtime classes; None: we may not ask. enforced: it enforces network policies.
    """

    runtimes: Collection[str] | None
    enforced: bool
    version: str = ""


def capabilities_of(settings: KubernetesSettings, found: Surroundings) -> Capabilities:
    """What boxes can have there."""
    return Capabilities(
        limits={
            "cpu": LimitKind.ENFORCED,
            "memory": LimitKind.ENFORCED,
            "pids": LimitKind.NONE,
            "disk": LimitKind.WATCHED,
        },
        networks=frozenset({"none"} if found.enforced else {"none", "internet"}),
        direct_networks=frozenset() if found.enforced else frozenset({"internet"}),
        way_out=True,
        runtimes=frozenset(found.runtimes or ()),
        images="an image reference",
        caller_images=settings.allow_images,
        other_users=True,
        gpu=True,
        oom_evidence=True,
        one_machine=False,
        network_enforced=found.enforced,
        orphan_s=settings.orphan_s,
        notes=tuple(_notes(found)),
    )


def _notes(found: Surroundings) -> list[str]:
    notes = ["processes of a pod are bounded by its node alone: set podPidsLimit of the kubelets"]
    if not found.enforced:
        notes.append(
            "the cluster enforces no network policies: run a network plugin that does, or say "
            "`kubernetes.accept_unenforced_network = true` in the templates that may do without"
        )
    if found.runtimes is None:
        notes.append(
            "runtime classes may not be listed: give the daemon's account the cluster role of "
            "docs/kubernetes.md, or name classes by `kubernetes.spec`"
        )
    return notes


def refuse(spec: BoxSpec, capabilities: Capabilities) -> None:
    """Say what cannot be had here. Raises `not_supported`."""
    kind = spec.network.kind
    if kind not in capabilities.networks:
        _not_supported(f"no network {kind!r}")
    if kind == "none" and not (capabilities.network_enforced or spec.pod.accept_unenforced_network):
        _not_supported(
            "no enforced network policies, so that no sandbox is kept off the network: run a "
            'network plugin that enforces them, set `network = "internet"`, or say '
            "`kubernetes.accept_unenforced_network = true` in the template"
        )
    if spec.runtime and spec.runtime not in capabilities.runtimes:
        known = ", ".join(sorted(capabilities.runtimes)) or "none"
        _not_supported(f"no runtime class {spec.runtime!r}; there is: {known}")


def _not_supported(what: str) -> NoReturn:
    raise SandboxdError(ErrorCode.NOT_SUPPORTED, f"the cluster has {what}")
