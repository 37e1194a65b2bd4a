"""The demo's daemon: `serve` in a process that ends with the demo, even if that is killed."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys

from sandboxd.cli import main

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Have the kernel send us SIGTERM when `parent` dies: an ephemeral daemon then cleans up."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)  # it died before the kernel knew


def run(parent: int, place: str, argv: list[str]) -> int:
    """Serve; take our folder away ourselves where the parent is no more to do so."""
    end_with_parent(parent)
    code = main(["serve", "--ephemeral", *argv])
    if os.getppid() != parent:
        shutil.rmtree(place, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
