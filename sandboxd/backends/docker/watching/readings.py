"""What the engine says a container uses, for those whose control groups are out of our sight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from docker import APIClient

from sandboxd.backends.docker.engine import EngineRefused, translated
from sandboxd.errors import SandboxdError
from sandboxd.linux.group_readings import GroupReadings


@dataclass(frozen=True, slots=True)
class EngineGroup:
    """One container's control group, by the engine's word. Blocking, as `Group` is."""

    api: APIClient
    container_id: str

    def processes(self) -> list[int]:
        """Out of sight."""
        return []

    def read(self) -> GroupReadings:
        """All None for a container that does not run, or an engine that does not answer."""
        said = self._ask()
        memory = said.get("memory_stats") or {}
        used_ns = _cpu_ns(said)
        return GroupReadings(
            cpu_s=None if used_ns is None else used_ns / 1e9,
            memory_bytes=memory.get("usage"),
            memory_peak_bytes=memory.get("max_usage"),  # with control groups of version 1 alone
        )

    def cpu_used(self) -> int | None:
        """In ns."""
        return _cpu_ns(self._ask())

    def _ask(self) -> Mapping[str, Any]:
        try:
            said: Mapping[str, Any] = translated(
                self.api.stats, self.container_id, stream=False, one_shot=True
            )
        except (EngineRefused, SandboxdError):
            return {}
        return said


def _cpu_ns(said: Mapping[str, Any]) -> int | None:
    """None for one that does not run: the engine says 0 then."""
    usage = (said.get("cpu_stats") or {}).get("cpu_usage") or {}
    return usage.get("total_usage") or None
