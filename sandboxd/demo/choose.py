"""The first backend that works here, or the one thing to do where none does."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from sandboxd.cli.doctor import Check, docker_checks, local_checks
from sandboxd.cli.ephemeral import ephemeral_place
from sandboxd.cli.faults import CliError
from sandboxd.demo.containers import choose_image
from sandboxd.settings import Settings, load_settings

_CONTAINER_COMMAND = 'docker run --rm -it --privileged -v "$PWD":/src -w /src python:3.12 make demo'


@dataclass(frozen=True, slots=True)
class Choice:
    """A backend, why it was taken, and the image of its sandboxes."""

    backend: str
    because: str
    image: str


def choose_backend(wanted: str) -> Choice:
    """The backend that was asked for, or for `auto` the first that works.

    Raises CliError with the one thing to do where none works here.
    """
    if wanted == "fake":
        raise CliError("the fake backend runs no real programs, so no verdict could be right")
    if sys.platform != "linux":
        raise CliError(
            f"sandboxes need Linux; start Docker and run the demo in it: {_CONTAINER_COMMAND}"
        )
    with ephemeral_place() as place:
        folders = {"state_dir": str(place / "state"), "backend.run_dir": str(place / "run")}
        settings = load_settings(None, env={}, overrides=folders)
        return _first(wanted, settings)


def _first(wanted: str, settings: Settings) -> Choice:
    local = None if wanted == "docker" else _gap(local_checks(settings))
    if wanted != "docker" and local is None:
        because = "bubblewrap works on this machine" if wanted == "auto" else "as asked"
        return Choice("local", because, "host")
    if wanted != "local":
        docker = _gap(docker_checks(settings))
        if docker is None:
            because = "as asked" if local is None else f"no local backend: {local.detail}"
            return Choice("docker", because, choose_image())
        if local is None:
            raise CliError(f"no docker backend here: {docker.detail}\nto do: {docker.mend}")
    assert local is not None
    raise CliError(f"no backend works here: {local.detail}\nto do: {local.mend}")


def _gap(checks: list[Check]) -> Check | None:
    """The first thing without which the backend cannot be."""
    return next((check for check in checks if check.is_fatal and not check.ok), None)
