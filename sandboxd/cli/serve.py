"""The verbs that need the daemon's side of the house: `serve`, and those that print what it has."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from pathlib import Path

from sandboxd.cli.ephemeral import ephemeral_place
from sandboxd.cli.faults import CliError, ExitCode
from sandboxd.settings import Settings, load_settings


def serve(args: Namespace) -> int:
    """Run the daemon until a signal ends it."""
    if sys.platform != "linux":
        text = (
            "the daemon runs on Linux; start it there or in a container, and use SANDBOXD_API_URL"
        )
        raise CliError(text)
    if not args.ephemeral or args.state_dir:
        return _run(args, place=None)
    with ephemeral_place() as place:
        return _run(args, place=place)


def _run(args: Namespace, *, place: Path | None) -> int:
    from sandboxd import daemon

    def read() -> Settings:
        return read_settings(args, place=place)

    return daemon.serve(read(), ephemeral=args.ephemeral, reload=read)


def check_config(args: Namespace) -> int:
    """Say whether the file can be used, and which templates it has."""
    if args.file and args.config:
        raise CliError("give the file once", code=ExitCode.USAGE)
    args.config = args.file or args.config
    settings = read_settings(args)
    facts = {
        "file": str(settings.source) if settings.source else None,
        "backend": settings.backend.kind,
        "state_dir": str(settings.state_dir),
        "listens": settings.server.base_url(),
        "api_keys": [key.name for key in settings.server.api_keys],
        "templates": {name: template.spec.image for name, template in settings.templates.items()},
    }
    if args.output == "json":
        print(json.dumps(facts, indent=2))
    else:
        name = facts["file"] or "built-in defaults"
        templates = ", ".join(settings.templates) or "none"
        print(f"{name}: in order; {settings.backend.kind} backend, templates: {templates}")
    return ExitCode.OK


def openapi(args: Namespace) -> int:
    """Print the OpenAPI document without starting anything."""
    from sandboxd.api.app import build_routes
    from sandboxd.telemetry.metrics import Metrics

    document = build_routes(Metrics()).openapi()
    print(json.dumps(document, indent=args.indent or None, ensure_ascii=False))
    return ExitCode.OK


def seccomp_profile(args: Namespace) -> int:
    """Print the profile that containers of the docker backend have anyway."""
    from sandboxd.linux.seccomp_profile import profile_for

    print(profile_for(args.machine))
    return ExitCode.OK


def read_settings(args: Namespace, *, place: Path | None = None) -> Settings:
    """The settings of a verb's flags, the variables and the file.

    place: state and sockets lie below it, whatever the file says. Raises SettingsError.
    """
    config = args.config or os.environ.get("SANDBOXD_CONFIG")
    overrides: dict[str, object] = {
        "server.host": getattr(args, "host", None),
        "server.port": getattr(args, "port", None),
        "backend.kind": getattr(args, "backend", None),
        "state_dir": _absolute(getattr(args, "state_dir", None)),
    }
    if place is not None:
        overrides |= {"state_dir": str(place / "state"), "backend.run_dir": str(place / "run")}
    return load_settings(Path(config) if config else None, env=os.environ, overrides=overrides)


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())
