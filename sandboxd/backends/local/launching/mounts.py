"""Folders and files of the machine that a template lets its boxes see.

Runs in the launching thread, which alone sees the stage. Knows paths and owners, no boxes.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from sandboxd.backends.local.launching.argv import ShownMount
from sandboxd.backends.local.launching.stage import Stage
from sandboxd.errors import SandboxdError
from sandboxd.model.template import Mount
from sandboxd.wire.codes import ErrorCode


def show_mounts(
    mounts: Iterable[Mount], *, stage: Stage, hidden: Sequence[Path]
) -> list[ShownMount]:
    """Have them within a box's reach. Raises `start_failed`, naming the one that cannot be.

    hidden: what no box may see; nothing that holds it or lies in it is shown.
    """
    return [
        ShownMount(
            source=_show(mount, stage=stage, hidden=hidden),
            inside=mount.target,
            read_only=mount.read_only,
        )
        for mount in mounts
    ]


def _show(mount: Mount, *, stage: Stage, hidden: Sequence[Path]) -> str:
    try:
        source = Path(mount.source).resolve(strict=True)
        facts = source.stat()
        if any(_meet(source, place.resolve()) for place in hidden):
            raise _unfit(mount, "boxes may not see the daemon's own files")
        if stat.S_ISDIR(facts.st_mode):
            return _reach(source, mount, stage, owner=facts.st_uid)
        if stat.S_ISREG(facts.st_mode):
            return f"{_reach(source.parent, mount, stage, owner=facts.st_uid)}/{source.name}"
    except (OSError, RuntimeError) as error:
        raise _unfit(mount, getattr(error, "strerror", None) or str(error)) from error
    raise _unfit(mount, "it is neither a folder nor a file")


def _reach(folder: Path, mount: Mount, stage: Stage, *, owner: int) -> str:
    # What may be written keeps its owners: through a mapping, what a box's root makes would be the
    # machine's root's, set-user-id programs among it.
    if mount.read_only and owner != stage.first_id:
        try:
            return stage.show(folder, owned=stage.first_id is not None)
        except OSError:  # its file system maps no owners: what all may read can be read inside
            pass
    return stage.show(folder, owned=False)


def _meet(one: Path, other: Path) -> bool:
    return one == other or one in other.parents or other in one.parents


def _unfit(mount: Mount, why: str) -> SandboxdError:
    detail = f"mount {mount.source} on {mount.target}: {why}"
    return SandboxdError(ErrorCode.START_FAILED, detail, details={"mount": mount.source})
