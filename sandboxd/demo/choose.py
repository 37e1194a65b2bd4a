"""The first backend that works here, or the one thing to do where none does."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from sandboxd.cli.doctor import local_checks
from sandboxd.cli.ephemeral import ephemeral_place
from sandboxd.cli.faults import CliError
from sandboxd.settings import load_settings

_CONTAINER_COMMAND = 'docker run --rm -it --privileged -v "$PWD":/src -w /src python:3.12 make demo'


@dataclass(frozen=True, slots=True)
class Choice:
    """A backend, and why it was taken."""

    backend: str
    because: str


def choose_backend(wanted: str) -> Choice:
    """The backend that was asked for, or for `auto` the first that works.

    Raises CliError with the one thing to do where none works here.
    """
    if wanted == "fake":
        raise CliError("the fake backend runs no real programs, so no verdict could be right")
    if wanted == "docker":
        raise CliError("the docker backend is not part of this version; use --backend local")
    if sys.platform != "linux":
        raise CliError(
            f"sandboxes need Linux; start Docker and run the demo in it: {_CONTAINER_COMMAND}"
        )
    _check_local()
    return Choice("local", "bubblewrap works on this machine" if wanted == "auto" else "as asked")


def _check_local() -> None:
    with ephemeral_place() as place:
        state = {"state_dir": str(place / "state"), "backend.run_dir": str(place / "run")}
        checks = local_checks(load_settings(None, env={}, overrides=state))
    for check in checks:
        if check.is_fatal and not check.ok:
            raise CliError(f"no backend works here: {check.detail}\nto do: {check.mend}")
