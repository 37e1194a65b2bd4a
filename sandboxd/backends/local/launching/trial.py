"""A trial run of bubblewrap, to learn what this machine allows before anybody depends on it."""

from __future__ import annotations

import os
import subprocess  # noqa: TID251 - in the launching thread, as `launcher` does
from pathlib import Path

from sandboxd.backends.local.launching.argv import Overlay, trial_argv
from sandboxd.backends.local.launching.stage import Stage
from sandboxd.linux.trees import make_directory, remove_tree

_PATIENCE_S = 10


def try_bwrap(stage: Stage, boxes_dir: Path, *, overlay: bool) -> str:
    """Run nothing in a throwaway sandbox: "" if it went well, else bubblewrap's complaint.

    overlay: lay one over `/usr`, with its upper directory where boxes have theirs. Blocking; in
    the launching thread.
    """
    home = boxes_dir / f".trial-{os.getpid()}"
    try:
        layers = [_layer(stage, boxes_dir, home)] if overlay else []
        words = trial_argv(
            bwrap=stage.bwrap, guest=stage.guest, userns_fd=stage.userns_fd, overlays=layers
        )
        passed = [] if stage.userns_fd is None else [stage.userns_fd]
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        try:
            with stage.acting():
                process = subprocess.Popen(
                    words,
                    stdin=null,
                    stdout=null,
                    stderr=subprocess.PIPE,
                    pass_fds=passed,
                    env={},
                    cwd="/",
                )
        finally:
            os.close(null)
        with process:
            complaint = process.communicate(timeout=_PATIENCE_S)[1]
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        remove_tree(home)
    text = complaint.decode(errors="replace").strip()
    return text if text.startswith("bwrap:") else ""


def _layer(stage: Stage, boxes_dir: Path, home: Path) -> Overlay:
    make_directory(home, mode=0o755)
    for name in ("upper", "work"):
        make_directory(home / name, mode=0o755)
        if stage.first_id is not None:
            os.chown(home / name, stage.first_id, stage.first_id)
    shown = Path(stage.show(boxes_dir, owned=False)) / home.name
    return Overlay(
        sources=[stage.show(Path("/usr"), owned=False)],
        upper=f"{shown}/upper",
        work=f"{shown}/work",
        inside="/usr",
    )
