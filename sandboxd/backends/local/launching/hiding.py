"""What no box may see of the machine, though it lies below something that is shown. Pure paths.

An empty file in a higher layer of an overlay hides whatever lies below it, a whole directory too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from sandboxd.backends.local.launching.skeletons import Skeleton

Files = Mapping[str, tuple[bytes, int]]
_BLANK = (b"", 0o600)


def hidden_below(top: Path, hidden: Iterable[Path]) -> list[Path]:
    """Which of them lie below `top`, by name or by where links lead; none below another."""
    places = {place for path in hidden for place in (path.absolute(), path.resolve())}
    found = [place for place in sorted(places) if top in place.parents and place.exists()]
    return [place for place in found if not set(place.parents) & set(found)]


def lay_over(top: Path, hidden: Iterable[Path], files: Files) -> Skeleton | None:
    """What lies over the machine's own `top`: files, and blanks for what is hidden; None: nothing.

    files: by path below `top`, like `/hostname`.
    """
    blanks = {f"/{place.relative_to(top)}": _BLANK for place in hidden_below(top, hidden)}
    laid = {**files, **blanks}
    if not laid:
        return None
    parents = {str(parent) for place in laid for parent in PurePosixPath(place).parents}
    return Skeleton(directories=dict.fromkeys(parents, 0o755), files=laid)
