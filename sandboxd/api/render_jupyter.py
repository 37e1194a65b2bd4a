"""How kernels look to Jupyter's own clients."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sandboxd.kernels.specs import DEFAULT, KernelSpec
from sandboxd.model.kernel import Kernel


def kernel(noun: Kernel) -> dict[str, Any]:
    """A kernel."""
    at = datetime.fromtimestamp(noun.active_at, UTC)
    return {
        "id": noun.kernel_id,
        "name": noun.spec,
        # Clients parse exactly this form.
        "last_activity": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "execution_state": noun.state,
        "connections": noun.clients,
    }


def spec(noun: KernelSpec) -> dict[str, Any]:
    """A kernelspec."""
    said = {
        "argv": noun.argv,
        "display_name": noun.display_name,
        "language": noun.language,
        "env": dict(noun.env),
        "interrupt_mode": "message" if noun.interrupted_by_message else "signal",
        "metadata": dict(noun.metadata),
    }
    return {"name": noun.name, "spec": said, "resources": {}}


def specs(nouns: Iterable[KernelSpec]) -> dict[str, Any]:
    """All kernelspecs."""
    return {"default": DEFAULT, "kernelspecs": {noun.name: spec(noun) for noun in nouns}}
