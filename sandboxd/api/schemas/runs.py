"""Bodies about runs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sandboxd.api.schemas.fields import Body


class HeartbeatBody(Body):
    """`PUT /v1/runs/{run_id}/heartbeat`: the run is lost if it is not heard of for so long."""

    ttl_s: Annotated[float, Field(ge=1, le=3600, allow_inf_nan=False)]
