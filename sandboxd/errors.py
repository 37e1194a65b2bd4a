"""The one error of the house. It crosses rooms and the wire as a code, never as a class path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandboxd.wire.codes import CODES, ErrorCode, Fault


class SandboxdError(Exception):
    """A named failure.

    code: from the closed set; fault, mask and retry_safe default to the code's own.
    detail: one sentence for a person; names the mend where there is one; never a secret.
    details: small JSON facts for programs (`position`, `limit`, `kept`, …).
    status: the HTTP status, where it is not the code's own (416 for a range that was not kept).
    """

    def __init__(  # noqa: PLR0913 - the members of a problem, all optional
        self,
        code: ErrorCode,
        detail: str,
        *,
        fault: Fault | None = None,
        mask: bool | None = None,
        retry_safe: bool | None = None,
        retry_after_s: float | None = None,
        sandbox_id: str | None = None,
        details: Mapping[str, Any] | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(detail)
        facts = CODES[code]
        self.code = code
        self.detail = detail
        self.fault = facts.fault if fault is None else fault
        self.mask = facts.mask if mask is None else mask
        self.retry_safe = facts.retry_safe if retry_safe is None else retry_safe
        self.retry_after_s = retry_after_s
        self.sandbox_id = sandbox_id
        self.details = dict(details or {})
        self.status = facts.status if status is None else status

    def again(self) -> SandboxdError:
        """The same for another caller: one that is raised many times would gather tracebacks."""
        return SandboxdError(
            self.code,
            self.detail,
            fault=self.fault,
            mask=self.mask,
            retry_safe=self.retry_safe,
            retry_after_s=self.retry_after_s,
            sandbox_id=self.sandbox_id,
            details=self.details,
            status=self.status,
        )

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"
