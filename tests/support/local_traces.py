"""What an installation of the local backend leaves on the machine; after a test: nothing."""

from __future__ import annotations

from pathlib import Path

from sandboxd.backends.local import LocalSettings
from sandboxd.guest.run_dir import default_run_dir


def traces(settings: LocalSettings) -> list[str]:
    """Every process, directory and control group that bears this installation's name."""
    run_dir = settings.run_dir or default_run_dir(settings.installation)
    boxes = settings.state_dir / "boxes"
    found = [str(path) for path in (run_dir,) if path.exists()]
    found += [str(path) for path in boxes.iterdir()] if boxes.exists() else []
    groups = Path("/sys/fs/cgroup")
    found += [str(path) for path in groups.glob(settings.level)]
    found += [str(path) for path in groups.glob(f"*/{settings.level}")]
    stage = f"\0/{settings.tag}-"
    return [*found, *_processes(stage), *_processes(f"\0{run_dir}/"), *_processes(f"\0{boxes}/")]


def _processes(text: str) -> list[str]:
    """Processes whose command line has a text in it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in words:
            found.append(f"process {entry.name}")
    return found
