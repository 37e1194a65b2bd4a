"""Where the engine finds what we see: the same paths, unless the daemon is in a container of its.

Then the engine is asked for that container's mounts. Blocking; call from a worker thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docker import APIClient

from sandboxd.backends.docker.engine import EngineRefused, translated

# Engines mount these into every container, from a directory that they name after it.
_GIVEN_FILES = {"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"}
_CONTAINER_ID = re.compile(r"/([0-9a-f]{64})/")


@dataclass(frozen=True, slots=True)
class HostPaths:
    """Our paths to the engine's.

    mounts: directory here to the directory there that it is. None: we are in no container.
    """

    mounts: Mapping[Path, Path] | None = None

    def to_host(self, path: Path) -> str:
        """The path by which the engine's machine knows a place of ours; of mounts the deepest."""
        mounts = self.mounts or {}
        for here in sorted(mounts, key=lambda place: len(place.parts), reverse=True):
            if path.is_relative_to(here):
                return str(mounts[here] / path.relative_to(here))
        return str(path)

    def shows(self, path: Path) -> bool:
        """Whether the engine's machine has that place of ours at all."""
        if self.mounts is None:
            return True
        return any(path.is_relative_to(here) for here in self.mounts)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnContainer:
    """The container that the daemon runs in. networks: the engine's names of those it is on."""

    container_id: str = ""
    paths: HostPaths = field(default_factory=HostPaths)
    networks: frozenset[str] = frozenset()


def own_container(api: APIClient) -> OwnContainer:
    """Ask the engine for it; empty if we are in none, or in one of another engine.

    Raises as engine calls do.
    """
    container_id = container_id_of(Path("/proc/self/mountinfo").read_text())
    if not container_id:
        return OwnContainer()
    try:
        facts: dict[str, Any] = translated(api.inspect_container, container_id)
    except EngineRefused as refusal:
        if refusal.status == 404:
            return OwnContainer()
        raise
    return OwnContainer(
        container_id=container_id,
        paths=HostPaths(mounts_of(facts)),
        networks=frozenset(facts.get("NetworkSettings", {}).get("Networks") or ()),
    )


def container_id_of(mountinfo: str) -> str:
    """The id of the container whose mounts these are; empty if they are a machine's."""
    for line in mountinfo.splitlines():
        fields = line.split()
        match = _CONTAINER_ID.search(fields[3])
        if match and fields[4] in _GIVEN_FILES:
            return match[1]
    return ""


def mounts_of(facts: Mapping[str, Any]) -> dict[Path, Path]:
    """Place inside to place on the engine's machine, of binds and of volumes."""
    return {
        Path(mount["Destination"]): Path(mount["Source"])
        for mount in facts.get("Mounts") or ()
        if mount.get("Source")
    }
