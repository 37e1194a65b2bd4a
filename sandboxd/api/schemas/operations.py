"""Bodies of an operator's calls."""

from __future__ import annotations

from typing import Annotated

from pydantic import (
    Field,
)

from sandboxd.api.schemas.fields import Body, ImageReference


class PrefetchBody(Body):
    """`POST /v1/images/prefetch`: images by the names that templates or leases would use."""

    images: Annotated[list[ImageReference], Field(min_length=1, max_length=100)]


class SweepBody(Body):
    """`POST /v1/sweep`; `all`: every lease and every box, not only orphans."""

    dry_run: bool = False
    all: bool = False


class PoolBody(Body):
    """`PATCH /v1/pools/{template}`: until the configuration is read again."""

    ready: Annotated[int, Field(ge=0, le=100_000)] | None = None
    max: Annotated[int, Field(ge=0, le=100_000)] | None = None
    starting: Annotated[int, Field(ge=1, le=1000)] | None = None
    queue: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    paused: bool | None = None
