"""Has the backend note on a box which lease has it, where it keeps such notes."""

from __future__ import annotations

from sandboxd.backends.protocol import Backend
from sandboxd.model.lease import Lease


def note_deed(backend: Backend, lease: Lease) -> None:
    """Of a lease that is in the store. Synchronous; what fails is the backend's to log."""
    if backend.deeds is not None and lease.box is not None:
        backend.deeds.note(
            lease.box,
            lease_id=lease.id,
            run_id=lease.terms.run_id or "",
            group_id=lease.terms.group_id or "",
        )
