"""Where an ephemeral daemon's state and sockets lie: one folder, removed at the end."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def ephemeral_place() -> Iterator[Path]:
    """A new folder, short enough to hold sockets, removed when the block ends."""
    # On disk: what sandboxes write would otherwise be memory where /tmp is a tmpfs.
    parent = "/var/tmp" if os.access("/var/tmp", os.W_OK | os.X_OK) else None  # noqa: S108
    place = Path(tempfile.mkdtemp(prefix="sandboxd-", dir=parent))
    try:
        # The ids that sandboxes are mapped to must be able to pass through; they cannot list it.
        place.chmod(0o711)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
