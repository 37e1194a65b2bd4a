"""Pages of the documentation that are run as written.

A comment before a block says what is otherwise done with it: `file NAME` (written beside the
commands), `background` (runs until the end), `not run` (with the reason).
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.daemon import ROOT

_BLOCK = re.compile(
    r"^(?:<!-- test: (?P<what>[^\n]*) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_COMMAND_S = 120
_STOP_S = 30


@dataclass(frozen=True)
class Block:
    """what: of the comment; kind: of the block."""

    what: str
    kind: str
    text: str


def blocks(page: str) -> list[Block]:
    """Those of a page of `docs`."""
    found = _BLOCK.finditer((ROOT / "docs" / page).read_text(encoding="utf-8"))
    return [Block(match["what"] or "", match["kind"], match["text"]) for match in found]


def lay_out(place: Path) -> Path:
    """Make a folder look like the project's own, where the page's files can be written."""
    for name in (".venv", "Makefile", "scripts", "images"):
        (place / name).symlink_to(ROOT / name)
    return place


def environment_of(place: Path, **more: str) -> dict[str, str]:
    """What the page's commands find in their environment."""
    port = free_port()
    # Nor what a `make` above us was told.
    others = ("SANDBOXD_", "MAKE", "MFLAGS", "ARGS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return kept | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")]),
        "SANDBOXD_STATE_DIR": str(place / "state"),
        "SANDBOXD_PORT": str(port),
        "SANDBOXD_API_URL": f"http://127.0.0.1:{port}",
        **more,
    }


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def write_files(page: str, place: Path) -> list[str]:
    """The page's files; their names."""
    names = []
    for block in blocks(page):
        if block.what.startswith("file "):
            names.append(block.what.removeprefix("file "))
            (place / names[-1]).write_text(block.text)
    return names


def run(text: str, place: Path, environment: dict[str, str]) -> str:
    """Run commands of the page; what they said."""
    said = subprocess.run(
        ["bash", "-euc", text],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_COMMAND_S,
        check=False,
    )
    assert said.returncode == 0, f"{text}\n{said.stdout}"
    return said.stdout


@contextmanager
def background(place: Path, environment: dict[str, str]) -> Iterator[Callable[[str], None]]:
    """Starts what runs beside the others; at the end it is stopped, and then its leases end."""
    started: list[subprocess.Popen[str]] = []

    def start(text: str) -> None:
        process = subprocess.Popen(
            ["bash", "-euc", f"exec {text}"],
            cwd=place,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("listening on ")

    try:
        yield start
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=_STOP_S)
            run(".venv/bin/sandboxd sweep --all --config sandboxd.toml", place, environment)
