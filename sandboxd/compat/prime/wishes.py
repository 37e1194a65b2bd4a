"""From a create of theirs to a lease of ours. Pure, but for the templates it looks at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from sandboxd.api.orders import digest_of, start_of
from sandboxd.compat.prime.bodies import CreateBody, EgressLists, StartCommand
from sandboxd.errors import SandboxdError
from sandboxd.leases.terms import LeaseWish
from sandboxd.model.command import Command
from sandboxd.model.template import Network, Resources, Template
from sandboxd.wire.codes import ErrorCode

# Labels of ours that hold what only their clients ask for.
NAME, IMAGE, VM = "prime.name", "prime.image", "prime.vm"
LABEL = "prime.label."

# As long as their clients wait for an image to be built; then the place in the queue is given up.
_QUEUE_S = 3000.0
_MINUTE_S = 60.0
# Commands that only keep a container alive, which ours need not: as commands that run they would
# keep the idle clock from ever running out.
_KEEP_ALIVE = {"tail -f /dev/null", "sleep infinity"}

# What is asked for but not here, with the reason that is told.
_MISSING = {
    "checkpoint_id": "there are no checkpoints here: give a docker_image",
    "volumes": "there are no volumes here: give a template `mounts`, or upload files",
    "registry_credentials_id": "credentials of registries stand in the daemon's configuration",
    "advanced_configs": "there are no advanced configurations here",
}


def wish_of(
    body: CreateBody, *, images: Mapping[str, str], templates: Mapping[str, Template]
) -> LeaseWish:
    """What a create asks for. images: their names to templates, `*` for the rest.

    Raises `not_supported` for what is not here.
    """
    for name, text in _MISSING.items():
        if getattr(body, name):
            raise not_here(name, text)
    image = body.docker_image or ""
    template = _template(image, images=images, templates=templates)
    life = -1 if body.timeout_minutes == -1 else body.timeout_minutes * _MINUTE_S
    idle = body.idle_timeout_minutes
    return LeaseWish(
        template="" if template is None else template.name,
        image=image if template is None else None,
        resources=resources_of(body, template),
        network=_network(body),
        env=body.environment_vars,
        secrets=body.secrets,
        start=_start(body.start_command),
        labels=_labels(body),
        timeout_s=life,
        idle_timeout_s=0 if idle is None else idle * _MINUTE_S,
        wait_timeout_s=_QUEUE_S,
        wait=False,
        idempotency_key=body.idempotency_key,
        body_digest="" if body.idempotency_key is None else digest_of(body),
    )


def _template(
    image: str, *, images: Mapping[str, str], templates: Mapping[str, Template]
) -> Template | None:
    """The one that a name is mapped to, else one of that very image."""
    mapped = templates.get(images.get(image) or images.get("*") or "")
    if mapped is not None:
        return mapped
    return next((each for each in templates.values() if each.spec.image == image), None)


def resources_of(body: CreateBody, template: Template | None) -> Resources | None:
    """What a box must have beyond its template's; None where the template's is enough, so that its
    warm stock serves.
    """
    have = Resources() if template is None else template.spec.resources
    need = replace(
        have,
        cpu=max(have.cpu, body.cpu_cores),
        memory_mb=max(have.memory_mb, math.ceil(body.memory_gb * 1024)),
        disk_mb=max(have.disk_mb, math.ceil(body.disk_size_gb * 1024)),
        gpu=max(have.gpu, body.gpu_count),
    )
    return None if template is not None and need == have else need


def network_of(lists: EgressLists) -> Network | None:
    """What lists of theirs let through; None where none is given.

    Raises `not_supported` for a list of what is denied: nothing here can keep to it.
    """
    if lists.allowlist is not None:
        allowed = tuple(lists.allowlist)
        return Network(kind="allow", allow=allowed) if allowed else Network()
    if lists.denylist is None:
        return None
    if lists.denylist:
        raise not_here("denylist", "only an allowlist can be kept here: name what may be reached")
    return Network(kind="internet")


def lists_of(network: Network) -> dict[str, list[str] | None]:
    """A network of ours as their two lists."""
    if network.kind == "internet":
        return {"allowlist": None, "denylist": []}
    return {"allowlist": list(network.allow), "denylist": None}


def not_here(field: str, text: str) -> SandboxdError:
    """What their service has and this one has not."""
    return SandboxdError(ErrorCode.NOT_SUPPORTED, f"{field}: {text}", details={"field": field})


def _network(body: CreateBody) -> Network | None:
    """Nothing said leaves the template's: what an operator closed, a default must not open."""
    if body.network_access is False:
        return Network()
    return network_of(body.egress)


def _start(command: StartCommand | str | None) -> Command | None:
    if isinstance(command, StartCommand):
        words = [command.executable, *command.args]
        return None if " ".join(words) in _KEEP_ALIVE else start_of(words)
    if command is None or not command.strip() or command.strip() in _KEEP_ALIVE:
        return None
    return start_of(command)


def _labels(body: CreateBody) -> dict[str, str]:
    kept = {NAME: body.name, IMAGE: body.docker_image or "", VM: "true" if body.vm else "false"}
    return kept | {f"{LABEL}{place}": label for place, label in enumerate(body.labels)}
