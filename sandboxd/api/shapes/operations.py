"""Answers to an operator."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from sandboxd.api.shapes.parts import Page
from sandboxd.backends.protocol import ImageState


class Image(BaseModel):
    """An image as the machine of the sandboxes has it; null where a fact cannot be had."""

    reference: str
    state: ImageState
    digest: str | None
    size_bytes: int | None
    used_at: float | None = Field(description="Of the last sandbox made of it.")
    in_use: int = Field(description="Sandboxes of it that exist.")
    error: str = Field(description="Why the last attempt to get it failed, else empty.")
    progress: str = Field(description="How far it has come, for people; else empty.")


class Prefetched(BaseModel):
    """How far the images are that were asked for."""

    images: list[Image]


class Images(Page):
    """Images, those used last first."""

    images: list[Image]


class QuotaBounds(BaseModel):
    """What a key's leases may take together; null where there is no bound."""

    leases: int | None
    cpu: float | None
    memory_mb: int | None
    creates_per_minute: int | None


class QuotaUse(BaseModel):
    """What they take now; what has ended counts until its container is gone."""

    leases: int
    cpu: float
    memory_mb: int


class QuotaState(BaseModel):
    """The quota of the key that asks."""

    key: str = Field(description="The key's name.")
    limits: QuotaBounds
    used: QuotaUse
    creates_left: int | None = Field(
        description="Leases that may be asked for right now; null where there is no bound."
    )


class Version(BaseModel):
    """What this daemon is and can do."""

    version: str
    api: str
    guest_protocols: list[int]
    backend: str
    capabilities: dict[str, Any]
    limits: dict[str, Literal["enforced", "watched", "none"]]
