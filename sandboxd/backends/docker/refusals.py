"""What an engine's refusals mean: the errors that callers are told. Pure."""

from __future__ import annotations

from sandboxd.backends.docker.engine import EngineRefused
from sandboxd.backends.parts.start_words import start_failed
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode


def start_refused(refusal: EngineRefused, image: str) -> SandboxdError:
    """The error for a container of `image` that the engine would not create or start."""
    return start_failed(refusal.detail, image, who="the engine")


def removal_refused(refusal: EngineRefused, box_id: str) -> SandboxdError:
    """The error for a container that the engine would not remove; worth another try."""
    return SandboxdError(
        ErrorCode.BACKEND_UNAVAILABLE,
        f"the engine could not remove box {box_id} ({refusal.detail})",
        retry_after_s=1.0,
    )


def call_refused(refusal: EngineRefused) -> SandboxdError:
    """The error for any other call that an engine should not refuse."""
    return SandboxdError(
        ErrorCode.BACKEND_UNAVAILABLE,
        f"the container engine refused a call ({refusal.status}: {refusal.detail})",
        retry_after_s=2.0,
    )
