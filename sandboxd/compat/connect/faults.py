"""Our errors as ConnectRPC's: a code of its closed list, and the status of an answer alone."""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd.api.problems import translate
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

_STATUS = {
    "invalid_argument": 400,
    "failed_precondition": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "resource_exhausted": 429,
    "internal": 500,
    "unimplemented": 501,
    "unavailable": 503,
    "deadline_exceeded": 504,
}

# A deadline of ours is no `deadline_exceeded`: its reader takes that for the command's own.
_CODES = {
    ErrorCode.BAD_REQUEST: "invalid_argument",
    ErrorCode.TOO_LARGE: "invalid_argument",
    ErrorCode.NAME_TOO_LONG: "invalid_argument",
    ErrorCode.CONFLICT: "failed_precondition",
    ErrorCode.UNAUTHENTICATED: "unauthenticated",
    ErrorCode.FORBIDDEN: "permission_denied",
    ErrorCode.NOT_FOUND: "not_found",
    ErrorCode.LEASE_ENDED: "not_found",
    ErrorCode.SANDBOX_LOST: "not_found",
    ErrorCode.QUOTA_EXCEEDED: "resource_exhausted",
    ErrorCode.NOT_SUPPORTED: "unimplemented",
    ErrorCode.CAPACITY: "unavailable",
    ErrorCode.SHUTTING_DOWN: "unavailable",
    ErrorCode.BACKEND_UNAVAILABLE: "unavailable",
    ErrorCode.TIMEOUT: "unavailable",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong, as it is told. code: of ConnectRPC's list."""

    code: str
    message: str

    @classmethod
    def of(cls, error: SandboxdError) -> Fault:
        """One of our errors."""
        return cls(_CODES.get(error.code, "internal"), error.detail)

    @property
    def status(self) -> int:
        """The HTTP status of an answer that is no stream."""
        return _STATUS[self.code]

    def told(self) -> dict[str, str]:
        """Its JSON."""
        return {"code": self.code, "message": self.message}


class Broken(Exception):
    """Something that is told as a fault of its own."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def fault_of(error: Exception) -> Fault:
    """Whatever went wrong: ValueError stands for a message that cannot be read."""
    if isinstance(error, Broken):
        return error.fault
    if isinstance(error, ValueError):
        return Fault("invalid_argument", str(error))
    return Fault.of(translate(error))
