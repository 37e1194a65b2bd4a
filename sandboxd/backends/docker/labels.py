"""The labels of a container: whose it is, which box, under which limits. Pure.

They are written by the call that creates it, and say all that another daemon must know of a box.
"""

from __future__ import annotations

from collections.abc import Mapping

from sandboxd.backends.protocol import BoxOrder

INSTALLATION = "sandboxd.installation"
BOX = "sandboxd.box"
_MEMORY = "sandboxd.memory_bytes"
_DISK = "sandboxd.disk_bytes"
_ORDER = "sandboxd.label."
_MIB = 1 << 20


def owned_by(installation: str, box_id: str = "") -> dict[str, list[str]]:
    """The engine's filter for what is this installation's, or for one box of it."""
    wanted = [f"{INSTALLATION}={installation}"]
    if box_id:
        wanted.append(f"{BOX}={box_id}")
    return {"label": wanted}


def labels_of(order: BoxOrder, installation: str) -> dict[str, str]:
    """All labels of the container of a box."""
    resources = order.spec.resources
    return {
        INSTALLATION: installation,
        BOX: order.box_id,
        _MEMORY: str(resources.memory_mb * _MIB),
        _DISK: str(resources.disk_mb * _MIB),
        **{f"{_ORDER}{name}": value for name, value in order.labels.items()},
    }


def order_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that the box was ordered with."""
    return {
        name.removeprefix(_ORDER): value
        for name, value in labels.items()
        if name.startswith(_ORDER)
    }


def limits_of(labels: Mapping[str, str]) -> tuple[int, int]:
    """The memory and disk limits in bytes; what somebody spoiled counts as no limit."""
    return _bytes(labels.get(_MEMORY, ""), 0), _bytes(labels.get(_DISK, ""), 1 << 62)


def _bytes(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() else otherwise
