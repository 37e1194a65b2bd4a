"""Faults by script: what goes wrong next, said beforehand. Acts on nothing by itself."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode, Fault


class Mishap(StrEnum):
    """What happens to a make."""

    FAIL = "fail"
    HANG = "hang"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class NextMake:
    """One make's fate."""

    mishap: Mishap
    error: SandboxdError | None = None


class Faults:
    """Makes meet the faults in the order in which they were scripted, one each.

    slow_s: seconds that every answer of every guest takes longer from now on. pull_s: seconds that
    every pull of an image takes from now on.
    """

    def __init__(self) -> None:
        self.slow_s = 0.0
        self.pull_s = 0.0
        self._pulls: deque[SandboxdError] = deque()
        self._makes: deque[NextMake] = deque()

    def fail_next_make(
        self,
        code: ErrorCode = ErrorCode.START_FAILED,
        detail: str = "scripted",
        *,
        fault: Fault | None = None,
        times: int = 1,
    ) -> None:
        """The next makes fail with that error."""
        error = SandboxdError(code, detail, fault=fault)
        self._makes.extend([NextMake(Mishap.FAIL, error)] * times)

    def hang_next_make(self) -> None:
        """The next make does not end until it is cancelled; nothing comes of it."""
        self._makes.append(NextMake(Mishap.HANG))

    def late_next_make(self) -> None:
        """The next make hangs too, but its box is there once the caller has given up."""
        self._makes.append(NextMake(Mishap.LATE))

    def slow(self, seconds: float) -> None:
        """Every answer of every guest takes that much longer; 0 ends it."""
        self.slow_s = seconds

    def fail_next_pull(
        self, detail: str = "scripted", *, fault: Fault | None = None, times: int = 1
    ) -> None:
        """The next pulls of images fail with `image_unavailable`."""
        error = SandboxdError(ErrorCode.IMAGE_UNAVAILABLE, detail, fault=fault)
        self._pulls.extend([error] * times)

    def take_pull(self) -> SandboxdError | None:
        """What the pull that ends now fails with; None: it goes well."""
        return self._pulls.popleft() if self._pulls else None

    def take_make(self) -> NextMake | None:
        """The fate of the make that begins now; None: it goes well."""
        return self._makes.popleft() if self._makes else None
