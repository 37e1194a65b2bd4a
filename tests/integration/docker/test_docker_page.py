"""The page about Docker works as written: its files are accepted and its commands run in order.

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

import pytest

from tests.conftest import EngineHost
from tests.support.daemon import ROOT

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]

PAGE = ROOT / "docs" / "docker.md"
_BLOCK = re.compile(
    r"^(?:<!-- test: (?P<what>[^\n]*) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_COMMAND_S = 120


@dataclass(frozen=True)
class Block:
    """what: of the comment; kind: of the block."""

    what: str
    kind: str
    text: str


def blocks() -> list[Block]:
    found = _BLOCK.finditer(PAGE.read_text(encoding="utf-8"))
    return [Block(match["what"] or "", match["kind"], match["text"]) for match in found]


def test_every_block_of_the_page_is_one_that_this_test_knows() -> None:
    kinds = {(block.kind, block.what.split()[0] if block.what else "") for block in blocks()}
    known = {("toml", "file"), ("sh", ""), ("sh", "background"), ("sh", "not")}
    assert kinds <= known
    assert ("sh", "background") in kinds


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder that looks like the project's own, where the page's files can be written."""
    for name in (".venv", "Makefile", "scripts", "images"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.fixture
def environment(engine_host: EngineHost, tmp_path: Path) -> dict[str, str]:
    port = free_port()
    # Nor what a `make` above us was told.
    others = ("SANDBOXD_", "MAKE", "MFLAGS", "ARGS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return kept | {
        "DOCKER_HOST": engine_host.host,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")]),
        "SANDBOXD_STATE_DIR": str(tmp_path / "state"),
        "SANDBOXD_PORT": str(port),
        "SANDBOXD_API_URL": f"http://127.0.0.1:{port}",
    }


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_the_pages_files_are_accepted(place: Path, environment: dict[str, str]) -> None:
    names = write_files(place)
    assert names == ["sandboxd.toml", "registries.toml"]
    (place / "secret").write_text("hunter2")
    for name in names:
        text = (place / name).read_text().replace("/run/secrets/registry", f"{place}/secret")
        (place / name).write_text(text)
        run(f".venv/bin/sandboxd check-config --config {name}", place, environment)


def test_the_pages_commands_do_what_it_says(place: Path, environment: dict[str, str]) -> None:
    write_files(place)
    said = ""
    with background(place, environment) as start:
        for block in blocks():
            if block.kind == "sh" and not block.what:
                said += run(block.text, place, environment)
            elif block.what == "background":
                start(block.text)
    assert "sandboxes can be made here" in said
    assert "sandboxes left over: 0" in said
    assert "\nhello\n" in said
    assert "sandboxd/python:latest" in said


def write_files(place: Path) -> list[str]:
    names = []
    for block in blocks():
        if block.what.startswith("file "):
            names.append(block.what.removeprefix("file "))
            (place / names[-1]).write_text(block.text)
    return names


def run(text: str, place: Path, environment: dict[str, str]) -> str:
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
            process.communicate(timeout=30)
            run(".venv/bin/sandboxd sweep --all --config sandboxd.toml", place, environment)
