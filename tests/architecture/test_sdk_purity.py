"""The SDK is light and runs anywhere: no Linux-only module, nothing of the daemon."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib

from tests.architecture.tree import ROOT, python_files

# Imports the whole SDK in a Python without what only Unix has and what only the daemon needs.
IMPORT_ALL = """
import importlib, json, os, pkgutil, sys

hidden = set("fcntl resource pwd grp termios pty tty spwd crypt syslog curses readline".split())
allowed = set("sandboxd sandboxd_client anyio h11 sniffio idna typing_extensions".split())

class Wall:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in hidden:
            raise ModuleNotFoundError(f"no {name} on this platform", name=name)
        if top not in allowed and top not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"{name} is no dependency of the SDK", name=name)
        if top == "sandboxd" and name.split(".")[1:2] not in ([], ["wire"]):
            raise ModuleNotFoundError(f"{name} is the daemon's", name=name)
        return None

for name in hidden:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Wall())

import sandboxd_client
for found in pkgutil.walk_packages(sandboxd_client.__path__, "sandboxd_client."):
    if not found.name.startswith("sandboxd_client.integrations."):  # plugs for other programs
        importlib.import_module(found.name)
print(json.dumps(sorted(name for name in sys.modules if name.startswith("sandboxd"))))
"""


def test_the_sdk_imports_without_linux_only_modules_and_with_the_wire_alone() -> None:
    answer = subprocess.run(
        [
            sys.executable,
            "-I",
            "-c",
            f"import sys; sys.path[:0] = {[str(ROOT), str(ROOT / 'client')]!r}\n{IMPORT_ALL}",
        ],
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    loaded = json.loads(answer.stdout)
    assert "sandboxd_client" in loaded
    assert [
        name
        for name in loaded
        if name.split(".")[0] == "sandboxd" and name.split(".")[1:2] not in ([], ["wire"])
    ] == []


def test_the_base_distribution_has_two_pure_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {requirement.split(">")[0] for requirement in project["dependencies"]}
    assert names == {"anyio", "h11"}


def test_the_sdk_tells_type_checkers_that_it_is_typed() -> None:
    assert (ROOT / "client/sandboxd_client/py.typed").is_file()


def test_the_sdk_has_files_to_judge() -> None:
    assert python_files("client/sandboxd_client/")
