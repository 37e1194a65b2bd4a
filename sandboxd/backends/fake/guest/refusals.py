"""What the fake guest refuses, with the codes and statuses of the protocol."""

from __future__ import annotations

from typing import Any

STATUS = {
    "bad_request": 422,
    "not_found": 404,
    "conflict": 409,
    "gone": 410,
    "too_large": 413,
    "range": 416,
    "file_not_found": 404,
    "file_is_directory": 409,
    "file_not_directory": 409,
    "file_exists": 409,
    "file_forbidden": 403,
    "name_too_long": 422,
    "disk_full": 507,
    "busy": 503,
    "internal": 500,
}


class Refusal(Exception):
    """A request that the guest does not grant."""

    def __init__(self, code: str, detail: str, **details: Any) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.details = details

    @property
    def status(self) -> int:
        """The HTTP status of its code."""
        return STATUS[self.code]
