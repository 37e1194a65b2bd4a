"""Prime's sandbox API in both of its dialects: a control plane below `/api/v1`, and a gateway below
each sandbox's own path, whose keys are tokens of ours.
"""

from __future__ import annotations

from fastapi import APIRouter

from sandboxd.compat.prime import control, gateway, jobs, surroundings
from sandboxd.compat.prime.sessions import CommandSessions
from sandboxd.compat.prime.surroundings import Exposures


def routers() -> list[APIRouter]:
    """All routes, in the order in which they must be asked; for one daemon."""
    sessions, exposures = CommandSessions(), Exposures()
    return [
        sessions.router,
        gateway.router,
        surroundings.missing,
        exposures.every,
        jobs.router,
        control.router,
        surroundings.router,
        exposures.router,
    ]
