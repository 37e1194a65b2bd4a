"""Where the engine finds what we see: the same paths, unless the daemon is in a container."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HostPaths:
    """Our paths to the engine's. mounts: directory here to the directory there that it is."""

    mounts: Mapping[Path, Path] = field(default_factory=dict)

    def to_host(self, path: Path) -> str:
        """The path by which the engine's machine knows a place of ours; of mounts the deepest."""
        for here in sorted(self.mounts, key=lambda place: len(place.parts), reverse=True):
            if path.is_relative_to(here):
                return str(self.mounts[here] / path.relative_to(here))
        return str(path)
