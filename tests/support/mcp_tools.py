"""MCP servers and clients that others wrote, once, in build/tools: from PyPI in a virtual
environment of their own, for they need the older line of the `mcp` package; and from npm.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.daemon import ROOT

TOOLS = ROOT / "build" / "tools"
_PYPI = ("mcp==1.30.0", "mcp-server-time==2026.10.10", "mcp-server-git==2026.10.10")
_NPM = (
    "node@22.23.3",
    "@modelcontextprotocol/conformance@0.1.16",
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-memory@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
)
_FETCH_S = 240


def older_python() -> Path:
    """A Python with the older line of the `mcp` package, and servers that need it."""
    return _once("mcp-older", _make_older) / "bin" / "python"


def older_site() -> Path:
    """Where its packages lie."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return older_python().parent.parent / "lib" / version / "site-packages"


def node_modules() -> Path:
    """Packages from npm, node itself among them: `node/bin/node`."""
    return _once("mcp-npm", _make_npm) / "node_modules"


def node() -> str:
    """A node that is new enough for all of them."""
    return str(node_modules() / "node" / "bin" / "node")


def script(package: str, path: str = "dist/index.js") -> Path:
    """A program of a package from npm."""
    return node_modules() / "@modelcontextprotocol" / package / path


def _once(name: str, make: Callable[[Path], None]) -> Path:
    """Made by whoever comes first. Where it cannot be had the test is skipped, but never in CI."""
    TOOLS.mkdir(parents=True, exist_ok=True)
    place, half = TOOLS / name, TOOLS / f"{name}.half"
    with (TOOLS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir()
            make(half)
            half.rename(place)
    return place


def _make_older(place: Path) -> None:
    _run([sys.executable, "-m", "venv", "--copies", str(place)])
    _run([str(place / "bin" / "python"), "-m", "pip", "install", "-q", *_PYPI])


def _make_npm(place: Path) -> None:
    if shutil.which("npm") is None:
        _fail_or_skip("there is no npm to bring MCP servers and the conformance suite")
    (place / "package.json").write_text("{}")
    _run(["npm", "install", "--silent", "--no-audit", "--no-fund", *_NPM], cwd=place)


def _run(command: Sequence[str], *, cwd: Path | None = None) -> None:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=_FETCH_S, check=False
    )
    if done.returncode != 0:
        _fail_or_skip(f"{command[0]} could not bring MCP packages: {done.stderr[-500:]}")


def _fail_or_skip(gap: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(gap)
    pytest.skip(gap)
