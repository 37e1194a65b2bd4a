"""One step of a build: a program with its output in a log, and words to act on where it fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from scripts.images.recipe import ImageError, say

STEP_S = 1200.0
_TAIL_LINES = 15


def step(text: str, command: Sequence[str | Path], *, log: Path, mend: str, **env: str) -> None:
    """Run it. Raises ImageError with the log's end and the mend."""
    begun = time.monotonic()
    say(f"{text} …")
    with log.open("ab") as output:
        try:
            status = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | env,
                timeout=STEP_S,
                check=False,
            ).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ImageError(f"{text} failed: {error}\n{mend}") from error
    if status != 0:
        raise ImageError(f"{text} failed with status {status}:\n{tail(log)}\n{mend}")
    say(f"{text}: done after {time.monotonic() - begun:.0f} s")


def tail(log: Path) -> str:
    """The end of a log, indented."""
    lines = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
    return "\n".join(f"    {line}" for line in lines)


def require(program: str, package: str) -> None:
    """Raises ImageError where the program is missing."""
    if shutil.which(program) is None:
        raise ImageError(f"`{program}` is not installed here: apt-get install {package}")
