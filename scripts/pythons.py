"""Find, or get, a Python for `.venv`; run the steps of the set-up.

Started by any Python from 3.9 on, with the standard library alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Optional, TextIO, Union

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
LOG = BUILD / "setup.log"

OLDEST, NEWEST = (3, 11), (3, 14)  # what we promise; newer ones may lack ready-made wheels
SAY_EVERY_S = 10

_NAMES = ["python3", *(f"python3.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1))]
_FOLDERS = ["/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"]
_APT = "(Debian, Ubuntu: `sudo apt-get install python3-venv python3-pip`)"
MEND_PYTHON = f"Install Python 3.11 or newer with venv and pip {_APT}, then run `make setup` again."

_started = time.monotonic()


class SetupError(Exception):
    """The set-up cannot go on; the text ends with the one thing to do."""


def say(text: str) -> None:
    """One line of progress, with the seconds since the start."""
    print(f"setup {time.monotonic() - _started:6.1f} s  {text}", flush=True)


# ------------------------------------------------------------------------------ running programs


def environment() -> "dict[str, str]":
    """Ours, without what would lead pip or Python out of the virtual environment."""
    dropped = {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "VIRTUAL_ENV"}
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    kept.setdefault("HOME", str(BUILD))  # pip and apt want one
    kept.update(PIP_USER="0", PIP_REQUIRE_VIRTUALENV="0", PIP_DISABLE_PIP_VERSION_CHECK="1")
    kept.update(PIP_NO_INPUT="1")
    return kept


def run(
    command: "Sequence[Union[str, Path]]",
    *,
    mend: str,
    extra_env: "Optional[dict[str, str]]" = None,
) -> None:
    """Run a step, its output into the log, a line now and then for who waits.

    mend: the one thing to do if it fails, which ends the set-up with SetupError.
    """
    words = [str(word) for word in command]
    BUILD.mkdir(exist_ok=True)
    with LOG.open("a", encoding="utf-8", errors="replace") as log:
        log.write(f"\n$ {' '.join(words)}\n")
        failure = _follow(words, log, {**environment(), **(extra_env or {})})
    if failure is not None:
        told = f"failed: {' '.join(words[:6])} …", f"the whole output: {LOG}"
        raise SetupError("\n".join([*failure, *told, mend]))


def _follow(words: "list[str]", log: TextIO, env: "dict[str, str]") -> "Optional[list[str]]":
    """The last lines of a command that failed; None of one that did not."""
    tail: "list[str]" = []
    fetched, said = 0, time.monotonic()
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        cwd=ROOT,
        encoding="utf-8",
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            log.write(line)
            tail = [*tail[-14:], line.rstrip()]
            fetched += line.startswith("Collecting ")
            if time.monotonic() - said > SAY_EVERY_S:
                said = time.monotonic()
                say(f"  … {fetched} packages so far" if fetched else "  …")
    return None if process.returncode == 0 else tail


def is_root_on_debian() -> bool:
    """Whether we may and can install system packages here."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def apt_install(packages: "Iterable[str]") -> bool:
    """Install system packages; says whether that worked. The log has the reason if it did not."""
    command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    say(f"{' '.join(command)}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    for before in ([], [["apt-get", "update"]]):  # the lists may be there and fresh enough
        try:
            for step in [*before, command]:
                run(step, mend="", extra_env=quiet)
        except (SetupError, OSError):
            continue
        return True
    return False


# --------------------------------------------------------------------------------------- Pythons


class Interpreter(NamedTuple):
    """A Python on this machine, and what it brings."""

    program: str
    version: "tuple[int, int]"
    has_venv: bool  # venv and ensurepip, which Debian packages apart from Python
    has_pip: bool

    @property
    def will_do(self) -> bool:
        """Whether its version is one that we promise."""
        return OLDEST <= self.version <= NEWEST


_PROBE = """
import importlib.util, json, sys
try:
    import ensurepip, venv
    has_venv = bool(ensurepip.version())
except Exception:
    has_venv = False
has_pip = importlib.util.find_spec("pip") is not None
print(json.dumps([sys.executable, sys.version_info[:2], has_venv, has_pip]))
"""


def probe(program: str) -> Optional[Interpreter]:
    """What that Python is; None if it does not run."""
    try:
        answer = subprocess.run(
            [program, "-I", "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=30,
            env=environment(),
            check=True,
        )
        path, version, has_venv, has_pip = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return Interpreter(path or program, (version[0], version[1]), has_venv, has_pip)


def interpreters() -> Iterator[Interpreter]:
    """The Pythons of this machine, the one that runs us first.

    Folders of the PATH that may not be read are passed over.
    """
    folders = [*filter(None, os.environ.get("PATH", "").split(os.pathsep)), *_FOLDERS]
    programs = [str(Path(folder) / name) for folder in folders for name in _NAMES]
    for program in dict.fromkeys([sys.executable, *programs]):
        if os.access(program, os.X_OK):
            found = probe(program)
            if found is not None:
                yield found


def find_python() -> Interpreter:
    """A Python that will do, installed if there is none. Raises SetupError."""
    found: "list[Interpreter]" = []
    for one in interpreters():
        if one.will_do and one.has_venv:
            return one
        found.append(one)
    fit = [one for one in found if one.will_do]
    if is_root_on_debian():
        installed = _from_apt(fit)
        if installed is not None:
            return installed
    if fit and any(one.has_pip for one in found):
        return next((one for one in fit if one.has_pip), fit[0])
    return _from_uv(found)


def find_pip() -> Interpreter:
    """Any Python here that has pip, of whatever version. Raises SetupError."""
    for one in interpreters():
        if one.has_pip:
            return one
    raise SetupError(MEND_PYTHON)


def _from_apt(fit: "list[Interpreter]") -> Optional[Interpreter]:
    """The venv of a Python that is there, else the newest Python that this system packages."""
    minors = [one.version[1] for one in fit] or list(range(NEWEST[1], OLDEST[1] - 1, -1))
    for minor in dict.fromkeys(minors):
        name = f"python3.{minor}"
        if apt_install([name, f"{name}-venv"]):
            found = probe(f"/usr/bin/{name}")
            if found is not None and found.has_venv:
                return found
    return None


def _from_uv(found: "list[Interpreter]") -> Interpreter:
    """By PyPI's uv, for who may not install system packages and has no Python that will do."""
    starter = next((one for one in found if one.has_pip), None)
    if starter is None:
        raise SetupError(MEND_PYTHON)
    say("no Python 3.11 to 3.14 here: getting one through PyPI's uv")
    uv, pythons = BUILD / "uv", BUILD / "python"
    run(
        [starter.program, "-m", "pip", "install", "--target", uv, "--upgrade", "uv"],
        mend=MEND_PYTHON,
    )
    run(
        [uv / "bin" / "uv", "python", "install", "--no-bin", "3.12"],
        mend=MEND_PYTHON,
        extra_env={
            "UV_PYTHON_INSTALL_DIR": str(pythons),
            "UV_CACHE_DIR": str(BUILD / "uv-cache"),
            "UV_NO_CONFIG": "1",
        },
    )
    for program in sorted(pythons.glob("*/bin/python3.12")):
        one = probe(str(program))
        if one is not None and one.will_do:
            return one
    raise SetupError(MEND_PYTHON)
