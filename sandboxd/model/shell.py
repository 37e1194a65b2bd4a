"""Shells that remember: directory, variables and functions live from one run to the next."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class ShellState(StrEnum):
    """Whether a shell can take text now."""

    IDLE = "idle"
    BUSY = "busy"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellOrder:
    """A shell to open: create-or-attach under `shell_id`."""

    shell_id: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """A shell as it is now. program: the path of the shell that runs, like `/bin/bash`."""

    shell_id: str
    state: ShellState
    program: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellText:
    """Text for a shell to run, recorded like a command under `exec_id`."""

    exec_id: str
    text: str
    timeout_s: float | None = None
    output_limit_bytes: int = 1 << 20

    def fingerprint(self) -> str:
        """Equal for the same text, so that an `exec_id` used for another one is noticed."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:32]
