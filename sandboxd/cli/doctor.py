"""`doctor`: what this machine can do, and the mend of each gap."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sandboxd.cli.faults import ExitCode
from sandboxd.cli.serve import read_settings
from sandboxd.cli.table import print_json
from sandboxd.settings import Settings


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
    checks = list(_house(settings))
    if not _any_fatal(checks):  # what cannot be written to can say nothing of the backend
        checks += _backend(settings)
    fatal = _any_fatal(checks)
    if args.output == "json":
        print_json({"ok": not fatal, "checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            _print(check)
        print("no sandbox can be made here" if fatal else "sandboxes can be made here")
    return ExitCode.FAILED if fatal else ExitCode.OK


def _any_fatal(checks: Sequence[Check]) -> bool:
    return any(check.is_fatal and not check.ok for check in checks)


def _print(check: Check) -> None:
    sign = "ok " if check.ok else "NO " if check.is_fatal else "gap"
    print(f"{sign} {check.name}: {check.detail}")
    if not check.ok and check.mend:
        print(f"    to do: {check.mend}")


def _house(settings: Settings) -> Iterator[Check]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Check(name="python", ok=True, detail=f"{python} at {sys.executable}")
    yield _folder("state folder", settings.state_dir, "--state-dir or SANDBOXD_STATE_DIR")


def _folder(name: str, path: Path, knob: str) -> Check:
    """Whether it can be written, or made below the first parent that exists."""
    there = next(place for place in (path, *path.parents) if place.exists())
    ok = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    detail = str(path) if ok else f"{path} cannot be written by user {os.geteuid()}"
    return Check(name=name, ok=ok, detail=detail, mend=f"name another by {knob}", is_fatal=True)


def _backend(settings: Settings) -> Iterator[Check]:
    if settings.backend.kind == "local":
        yield from local_checks(settings)
        return
    if settings.backend.kind == "docker":
        yield from docker_checks(settings)
        return
    if settings.backend.kind == "kubernetes":
        yield from kubernetes_checks(settings)
        return
    yield Check(name="backend", ok=True, detail="fake is in memory")


def local_checks(settings: Settings) -> list[Check]:
    """What the local backend needs and finds here."""
    if sys.platform != "linux":
        mend = "use a Linux machine or container"
        detail = f"this is {sys.platform}, sandboxes need Linux"
        return [Check(name="system", ok=False, detail=detail, mend=mend, is_fatal=True)]
    from sandboxd.backends.local import LocalSettings
    from sandboxd.backends.local.doctor import probe

    found = probe(
        LocalSettings(
            state_dir=settings.state_dir,
            run_dir=settings.backend.run_dir,
            installation="doctor",
            first_id=settings.backend.local.first_id,
            id_count=settings.backend.local.id_count,
        ),
        max_sandboxes=settings.limits.max_sandboxes,
    )
    return [
        Check(name=one.name, ok=one.ok, detail=one.detail, mend=one.mend, is_fatal=one.vital)
        for one in found
    ]


def docker_checks(settings: Settings) -> list[Check]:
    """What the docker backend needs and finds, here and in the engine."""
    from sandboxd.backends.docker import DockerSettings
    from sandboxd.backends.docker.doctor import probe

    options = settings.backend.docker
    found = probe(
        DockerSettings(
            state_dir=settings.state_dir,
            run_dir=settings.backend.run_dir,
            installation="doctor",
            host=options.host,
            guest=options.guest,
            network=options.network,
        ),
        images=sorted({template.spec.image for template in settings.templates.values()} - {"host"}),
        max_sandboxes=settings.limits.max_sandboxes,
    )
    return [
        Check(name=one.name, ok=one.ok, detail=one.detail, mend=one.mend, is_fatal=one.vital)
        for one in found
    ]


def kubernetes_checks(settings: Settings) -> list[Check]:
    """What the kubernetes backend needs and finds in its cluster."""
    from sandboxd.backend_choice import kubernetes_settings
    from sandboxd.backends.kubernetes.doctor import probe

    chosen = kubernetes_settings(settings, installation="doctor", secret=b"")
    templates = {name: template.spec for name, template in settings.templates.items()}
    return [
        Check(name=one.name, ok=one.ok, detail=one.detail, mend=one.mend, is_fatal=one.vital)
        for one in probe(chosen, templates=templates)
    ]
