"""What all answers share."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from sandboxd.wire.codes import ErrorCode, Fault

Responses = dict[int | str, dict[str, Any]]


class Problem(BaseModel):
    """Why a request was refused or failed (`application/problem+json`)."""

    type: str
    title: str
    status: int
    detail: str = Field(description="One sentence, with the mend where there is one.")
    code: ErrorCode
    fault: Fault
    retry_safe: bool = Field(description="It had no effect and may be sent again without an id.")
    mask: bool = Field(description="Leave this rollout out of the batch.")
    retry_after_s: float | None
    sandbox_id: str | None
    request_id: str
    details: dict[str, Any]


class Page(BaseModel):
    """Part of a list."""

    next_cursor: str | None = Field(description="Given back as `cursor`, the list goes on.")


def answers(model: type[BaseModel], *statuses: int) -> Responses:
    """The same shape under each status; 200 if none is named."""
    return {status: {"model": model} for status in statuses or (200,)}


def raw(media_type: str) -> Responses:
    """Bytes as they are."""
    return {200: {"content": {media_type: {"schema": {"type": "string", "format": "binary"}}}}}


def takes(media_type: str) -> dict[str, Any]:
    """A body of bytes as they are, for `openapi_extra`."""
    return {
        "requestBody": {"content": {media_type: {"schema": {"type": "string", "format": "binary"}}}}
    }
