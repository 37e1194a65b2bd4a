"""Answers about runs, and what follows what happens."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from sandboxd.api.shapes.parts import Page, Responses
from sandboxd.model.run import RunState
from sandboxd.wire.codes import EndReason


class Run(BaseModel):
    """A trainer's heartbeat, and what leases name it."""

    run_id: str
    state: RunState
    ttl_s: float
    began_at: float
    expires_at: float = Field(description="When it is lost unless it is heard of, or was lost.")
    leased: int
    queued: int
    ended: dict[EndReason, int] = Field(
        description="Since this daemon started, and for an hour before."
    )


class Runs(Page):
    """Runs, newest first."""

    runs: list[Run]


class Event(BaseModel):
    """What happened: the `data` of a server-sent event, whose `id` and `event` stand beside it.

    Which of the facts there are depends on the type.
    """

    at: float
    run_id: str | None = None
    sandbox_id: str | None = None
    template: str | None = None
    group_id: str | None = None
    rollout_id: str | None = None
    phase: str | None = None
    reason: str | None = None
    expires_at: float | None = None
    end: dict[str, Any] | None = None


FOLLOWED: Responses = {
    200: {
        "description": "Server-sent events; the data of each is an Event.",
        "content": {"text/event-stream": {"schema": {"$ref": "#/components/schemas/Event"}}},
    }
}
