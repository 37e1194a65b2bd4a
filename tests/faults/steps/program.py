"""The daemon's program, but it can be told to end itself, or to stand still, at a named step.

    python -m tests.faults.steps.program serve …

A step is a method and the moment before or after its own work. What is to happen there stands in
the file that `SIGNPOST` names; see `Signpost`, which writes it from outside.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

from sandboxd.cli import main as program

SIGNPOST = "SIGNPOST"  # the variable; no setting of the daemon's, so not by its prefix
HURRY = ".hurry"  # a file beside the signpost: see `_HURRIED`
AWAY_S = 40.0  # standing still for longer than any test is a mistake of the test's

_ANYWHERE = (
    "sandboxd.execution.commands:Commands.follow",
    "sandboxd.execution.commands:Commands.run",
    "sandboxd.guest.client:Guest.claim",
    "sandboxd.guest.client:Guest.kill_all",
    "sandboxd.guest.client:Guest.open_shell",
    "sandboxd.guest.client:Guest.renew",
    "sandboxd.guest.client:Guest.run",
    "sandboxd.guest.client:Guest.run_in_shell",
    "sandboxd.leases.adoption:Adoption._take_back",
    "sandboxd.leases.adoption:Adoption._take_in",
    "sandboxd.leases.desk:Desk.begin_grading",
    "sandboxd.leases.desk:Desk.forget",
    "sandboxd.leases.desk:Desk.release",
    "sandboxd.leases.desk:Desk.renew",
    "sandboxd.leases.endings:Endings.end",
    "sandboxd.leases.granting.groups:Groups.lease",
    "sandboxd.leases.granting.singles:Granting.lease",
    "sandboxd.leases.runs.runs:Runs._lose",
    "sandboxd.leases.runs.runs:Runs.beat",
    "sandboxd.leases.runs.runs:Runs.forget",
    "sandboxd.leases.sqlite_store:SqliteStore.forget",
    "sandboxd.leases.sqlite_store:SqliteStore.forget_runs",
    "sandboxd.leases.sqlite_store:SqliteStore.put",
    "sandboxd.leases.sqlite_store:SqliteStore.put_all",
    "sandboxd.leases.sqlite_store:SqliteStore.put_run",
)
_ON = {
    "local": (
        "sandboxd.backends.local.backend:LocalBackend.dispose",
        "sandboxd.backends.local.backend:LocalBackend.make",
        "sandboxd.backends.local.backend:LocalBackend.read",
        "sandboxd.backends.local.boxes:BoxShelf.create",
        "sandboxd.backends.local.boxes:BoxShelf.note_process",
        "sandboxd.backends.local.launching.launcher:Launcher.spawn",
        "sandboxd.backends.local.launching.launcher:Spawned.release",
        "sandboxd.backends.local.removing:Remover._clear",
    ),
    "docker": (
        "sandboxd.backends.docker.backend:DockerBackend.dispose",
        "sandboxd.backends.docker.backend:DockerBackend.make",
        "sandboxd.backends.docker.making:Maker._create",
        "sandboxd.backends.docker.making:Maker._meet_guest",
        "sandboxd.backends.docker.removing:Remover._remove_container",
    ),
}
# So that ended leases are forgotten while one looks on.
_HURRIED = (
    ("sandboxd.leases.reaper", "KEPT_AFTER_END_S", 1.0),
    ("sandboxd.leases.reaper", "_BOOKS_EVERY_S", 0.2),
)


def _pass(step: str) -> None:
    """Do what stands on the signpost, if it names this step and this is the time."""
    post = Path(os.environ[SIGNPOST])
    try:
        order = json.loads(post.read_text())
    except FileNotFoundError:
        return
    if order["step"] != step:
        return
    if order["passes"] > 0:
        _replace(post, {**order, "passes": order["passes"] - 1})
        return
    post.unlink()
    if order["act"] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    reached, onwards = post.with_suffix(".reached"), post.with_suffix(".onwards")
    reached.touch()
    over_at = time.monotonic() + AWAY_S
    while not onwards.exists() and time.monotonic() < over_at:
        time.sleep(0.005)  # the whole daemon stands still, as if it were killed here


def _replace(post: Path, order: dict[str, Any]) -> None:
    fresh = post.with_suffix(".fresh")
    fresh.write_text(json.dumps(order))
    fresh.replace(post)


def _watched(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
    """The same method with our eyes on it. Of a generator each item is a step `item`."""
    if inspect.isasyncgenfunction(inner):

        @functools.wraps(inner)
        async def generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            _pass(f"before {name}")
            async for item in inner(*args, **kwargs):
                _pass(f"item {name}")
                yield item
            _pass(f"after {name}")

        return generator
    if inspect.iscoroutinefunction(inner):

        @functools.wraps(inner)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            _pass(f"before {name}")
            done: Awaitable[Any] = inner(*args, **kwargs)
            result = await done
            _pass(f"after {name}")
            return result

        return coroutine

    @functools.wraps(inner)
    def plain(*args: Any, **kwargs: Any) -> Any:
        _pass(f"before {name}")
        result = inner(*args, **kwargs)
        _pass(f"after {name}")
        return result

    return plain


def watch(names: tuple[str, ...]) -> None:
    """Put each of these methods under our eyes. AttributeError for one that is no more."""
    for name in names:
        module, _, path = name.partition(":")
        owner, _, method = path.partition(".")
        where = getattr(importlib.import_module(module), owner)
        setattr(where, method, _watched(path, getattr(where, method)))


def _hurry() -> None:
    for module, constant, value in _HURRIED:
        where = importlib.import_module(module)
        getattr(where, constant)  # AttributeError where there is none
        setattr(where, constant, value)


def main() -> int:
    """Run the daemon's program."""
    backend = sys.argv[sys.argv.index("--backend") + 1]
    watch(_ANYWHERE + _ON[backend])
    if Path(os.environ[SIGNPOST]).with_suffix(HURRY).exists():
        _hurry()
    return int(program())


if __name__ == "__main__":
    sys.exit(main())
