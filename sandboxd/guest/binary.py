"""Where the guest agent's executable for this machine lies. Knows nothing of how it is built."""

from __future__ import annotations

import platform
from pathlib import Path

from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def guest_binary(machine: str = "") -> Path:
    """The static executable for a machine (this one by default), as shipped with the package.

    Raises `backend_unavailable` if this build carries none for it.
    """
    machine = machine or platform.machine()
    architecture = _ARCHITECTURES.get(machine.lower())
    path = Path(__file__).parent / "bin" / f"sandbox-guest-linux-{architecture}"
    if architecture is None or not path.is_file():
        raise SandboxdError(
            ErrorCode.BACKEND_UNAVAILABLE,
            f"this build has no guest agent for {machine}: run `make setup`, or install a wheel",
        )
    return path
