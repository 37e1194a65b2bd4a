"""The first backend that works here, or the one thing to do where none does."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from sandboxd.cli.faults import CliError

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
    if wanted not in {"auto", "local"}:
        return Choice(wanted, "as asked")
    if sys.platform != "linux":
        raise CliError(
            f"sandboxes need Linux; start Docker and run the demo in it: {_CONTAINER_COMMAND}"
        )
    _check_local()
    return Choice("local", "bubblewrap works on this machine" if wanted == "auto" else "as asked")


def _check_local() -> None:
    from sandboxd.cli.doctor import local_gaps

    for gap in local_gaps():
        if gap.is_fatal:
            raise CliError(f"the local backend does not work here: {gap.detail}\nto do: {gap.mend}")
