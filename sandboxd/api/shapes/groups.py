"""Answers about groups."""

from __future__ import annotations

from pydantic import BaseModel, Field

from sandboxd.api.shapes.leases import Sandbox


class Group(BaseModel):
    """Sandboxes that were leased together."""

    group_id: str
    sandboxes: list[Sandbox] = Field(description="In the order in which they were asked for.")


class ReleasedGroup(BaseModel):
    """What the release of a group did."""

    group_id: str
    released: list[str]
    failed: list[str]
