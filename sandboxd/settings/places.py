"""Where state and sockets lie when nobody says so."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

# A box's socket path is RUN_DIR/<box>/<socket> and must stay under 100 bytes.
RUN_DIR_BYTES = 60


def default_state_dir(env: Mapping[str, str]) -> Path:
    """/var/lib/sandboxd as root, else below $XDG_STATE_HOME or ~/.local/state."""
    if os.geteuid() == 0:
        return Path("/var/lib/sandboxd")
    home = env.get("XDG_STATE_HOME", "")
    place = Path(home) if home.startswith("/") else _home(env) / ".local" / "state"
    return place / "sandboxd"


def default_run_dir(env: Mapping[str, str]) -> Path:
    """/run/sandboxd as root, else below $XDG_RUNTIME_DIR, else one per user in /tmp."""
    if os.geteuid() == 0:
        return Path("/run/sandboxd")
    runtime = env.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and len(os.fsencode(runtime)) < RUN_DIR_BYTES - len("/sandboxd"):
        return Path(runtime) / "sandboxd"
    return Path(f"/tmp/sandboxd-{os.geteuid()}")  # noqa: S108 - made 0700 and checked by its user


def _home(env: Mapping[str, str]) -> Path:
    home = env.get("HOME", "")
    return Path(home) if home.startswith("/") else Path(f"/var/tmp/sandboxd-{os.geteuid()}")  # noqa: S108
