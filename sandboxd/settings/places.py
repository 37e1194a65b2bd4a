"""Where state lies when nobody says so."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def default_state_dir(env: Mapping[str, str]) -> Path:
    """/var/lib/sandboxd as root, else below $XDG_STATE_HOME or ~/.local/state."""
    if os.geteuid() == 0:
        return Path("/var/lib/sandboxd")
    home = env.get("XDG_STATE_HOME", "")
    place = Path(home) if home.startswith("/") else _home(env) / ".local" / "state"
    return place / "sandboxd"


def _home(env: Mapping[str, str]) -> Path:
    home = env.get("HOME", "")
    return Path(home) if home.startswith("/") else Path(f"/var/tmp/sandboxd-{os.geteuid()}")  # noqa: S108
