"""The body that leases a group."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from sandboxd.api.schemas.fields import CallerId
from sandboxd.api.schemas.leases import LeaseBody

MAX_GROUP = 1000


class GroupBody(LeaseBody):
    """`POST /v1/groups`: as for one sandbox, and how many of it.

    `group_id` names the group, or `idempotency_key` does: the same name finds the same group.
    """

    count: Annotated[int, Field(ge=1, le=MAX_GROUP)]
    rollout_ids: Annotated[list[CallerId], Field(max_length=MAX_GROUP)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> GroupBody:
        if self.rollout_ids is not None and len(self.rollout_ids) != self.count:
            raise ValueError(f"rollout_ids: give {self.count} of them, one for each sandbox")
        if self.rollout_ids is not None and self.rollout_id is not None:
            raise ValueError("give either rollout_ids or one rollout_id for all")
        if self.group_id is not None and self.idempotency_key is not None:
            raise ValueError("give either group_id or idempotency_key: each names the group")
        return self
