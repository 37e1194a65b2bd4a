"""`doctor`: what this machine can do, and the mend of each gap."""

from __future__ import annotations

import os
import resource
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from sandboxd.cli.faults import ExitCode
from sandboxd.cli.serve import read_settings
from sandboxd.cli.table import print_json
from sandboxd.settings import Settings

# A lease with a command in flight: the guest's socket, the caller's, a pidfd, the attached stream.
_DESCRIPTORS_PER_SANDBOX = 4
_DESCRIPTORS_OF_OURS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at. mend: what to do where it is not `ok`.

    is_fatal: without it no sandbox can be made here.
    """

    name: str
    ok: bool
    detail: str
    mend: str = ""
    is_fatal: bool = False


def doctor(args: Namespace) -> int:
    """Look at everything and say it. 1 if no sandbox can be made here."""
    settings = read_settings(args)
    checks = [*_house(settings), *_backend(settings)]
    fatal = any(check.is_fatal and not check.ok for check in checks)
    if args.output == "json":
        print_json({"ok": not fatal, "checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            _print(check)
        print("no sandbox can be made here" if fatal else "sandboxes can be made here")
    return ExitCode.FAILED if fatal else ExitCode.OK


def local_gaps() -> list[Check]:
    """What is missing for the local backend."""
    return [check for check in _local() if not check.ok]


def _print(check: Check) -> None:
    sign = "ok " if check.ok else "NO " if check.is_fatal else "gap"
    print(f"{sign} {check.name}: {check.detail}")
    if not check.ok and check.mend:
        print(f"    to do: {check.mend}")


def _house(settings: Settings) -> Iterator[Check]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Check(name="python", ok=True, detail=f"{python} at {sys.executable}")
    yield _folder("state folder", settings.state_dir, "--state-dir or SANDBOXD_STATE_DIR")
    yield _folder("run folder", settings.backend.run_dir, "SANDBOXD_RUN_DIR")
    yield _descriptors(settings)


def _folder(name: str, path: Path, knob: str) -> Check:
    """Whether it can be written, or made below the first parent that exists."""
    there = next(place for place in (path, *path.parents) if place.exists())
    ok = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    detail = str(path) if ok else f"{path} cannot be written by user {os.geteuid()}"
    return Check(name=name, ok=ok, detail=detail, mend=f"name another by {knob}", is_fatal=True)


def _descriptors(settings: Settings) -> Check:
    most = settings.limits.max_sandboxes
    needed = _DESCRIPTORS_OF_OURS + _DESCRIPTORS_PER_SANDBOX * most
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Check(
        name="open files",
        ok=hard == resource.RLIM_INFINITY or hard >= needed,
        detail=f"at most {hard}; limits.max_sandboxes = {most} needs about {needed}",
        mend=f"raise the hard limit (`ulimit -Hn {needed}`, LimitNOFILE=) or lower max_sandboxes",
    )


def _backend(settings: Settings) -> Iterator[Check]:
    if settings.backend.kind == "local":
        yield from _local()
    else:
        detail = f"{settings.backend.kind}: nothing of this machine is needed, or looked at yet"
        yield Check(name="backend", ok=True, detail=detail)
