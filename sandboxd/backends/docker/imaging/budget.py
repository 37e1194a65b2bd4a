"""Which images go when what we pulled takes more than it may. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sandboxd.backends.docker.imaging.ledger import Entry
from sandboxd.backends.docker.imaging.shelf import OnShelf
from sandboxd.model.image import image_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """What stays, whatever it takes: ids that containers or makes use, and names with stock."""

    image_ids: Collection[str]
    names: frozenset[str]


def to_drop(
    entries: Iterable[Entry], shelf: Mapping[str, OnShelf], keep: Keep, *, budget_bytes: int
) -> list[str]:
    """The ids that must go, the longest unused first, so that the rest fits; fewer if not all may.

    entries: the longest unused first. shelf: by id. Only what we pulled counts and goes. Layers
    that images share count with each of them, as engines tell sizes.
    """
    ours = [entry for entry in entries if entry.pulled and entry.image_id in shelf]
    excess = sum(shelf[entry.image_id].size_bytes for entry in ours) - budget_bytes
    dropped = []
    for entry in ours:
        if excess <= 0:
            break
        image = shelf[entry.image_id]
        if _may_go(entry, image, keep):
            dropped.append(entry.image_id)
            excess -= image.size_bytes
    return dropped


def _may_go(entry: Entry, image: OnShelf, keep: Keep) -> bool:
    if entry.image_id in keep.image_ids or not keep.names.isdisjoint(entry.names):
        return False
    # A name that we never asked for was given by somebody else.
    return {whole(tag) for tag in image.tags} <= set(entry.names)


def whole(tag: str) -> str:
    """A name as the ledger writes it."""
    try:
        return str(image_name(tag))
    except ValueError:
        return tag
