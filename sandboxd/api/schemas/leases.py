"""Bodies that lease, renew and rewire."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    model_validator,
)

from sandboxd.api.schemas.commands import Cmd
from sandboxd.api.schemas.fields import (
    MAX_SECONDS,
    AllowEntry,
    Base64,
    Body,
    CallerId,
    Environment,
    ForwardUrl,
    HeaderName,
    HeaderValue,
    Labels,
    Life,
    Mode,
    Path,
    Port,
    Seconds,
    Text,
    _encodable,
)
from sandboxd.api.schemas.kernels import SpecName
from sandboxd.api.schemas.mcp_servers import McpServers

MAX_FILES_BYTES = 16 << 20


class ResourcesBody(Body):
    """Limits of a sandbox that differ from its template's."""

    cpu: Annotated[float, Field(gt=0, le=1024)] | None = None
    memory_mb: Annotated[int, Field(ge=16, le=1 << 24)] | None = None
    pids: Annotated[int, Field(ge=8, le=1 << 22)] | None = None
    disk_mb: Annotated[int, Field(ge=1, le=1 << 30)] | None = None
    gpu: Annotated[int, Field(ge=0, le=64)] | None = None


class AllowBody(Body):
    """An allow-list: `HOST`, `*.DOMAIN`, addresses and ranges, each with or without `:PORT`."""

    allow: Annotated[list[AllowEntry], Field(min_length=1, max_length=1024)]


Network = Literal["none", "internet"] | AllowBody


class ForwardBody(Body):
    """A forward's address outside, and headers that are added to each request there.

    The headers' values are secret: kept in memory alone, and never shown.
    """

    url: ForwardUrl
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict, repr=False, max_length=64)


def _forward(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


Forwards = Annotated[
    dict[
        Port,
        Annotated[ForwardBody, BeforeValidator(_forward, json_schema_input_type=str | ForwardBody)],
    ],
    Field(max_length=32),
]


class FileBody(Body):
    """A file that is there before the first command; one of `text` and `data_b64`."""

    text: Annotated[str, AfterValidator(_encodable)] | None = None
    data_b64: Base64 | None = None
    mode: Mode | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> FileBody:
        if (self.text is None) == (self.data_b64 is None):
            raise ValueError("give either text or data_b64")
        return self

    @property
    def data(self) -> bytes:
        """The bytes."""
        return self.text.encode() if self.text is not None else self.data_b64 or b""


class LeaseBody(Body):
    """`POST /v1/sandboxes`. Everything is optional but `template` or `image`."""

    template: Text | None = None
    image: Annotated[Text, StringConstraints(min_length=1, max_length=1024)] | None = None
    resources: ResourcesBody | None = None
    env: Environment = Field(default_factory=dict)
    secrets: Environment = Field(default_factory=dict, repr=False)
    files: dict[Path, FileBody] = Field(default_factory=dict, repr=False)
    workdir: Path | None = None
    user: Text | None = None
    start: Cmd | None = None
    network: Network | None = None
    runtime: Text | None = None
    kernels: Annotated[list[SpecName], Field(max_length=16)] | None = None
    mcp_servers: McpServers | None = None
    forwards: Forwards = Field(default_factory=dict)
    labels: Labels = Field(default_factory=dict)
    timeout_s: Life | None = None
    idle_timeout_s: Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)] | None = None
    grading_s: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = 0
    wait_timeout_s: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = 60
    wait: bool = True
    run_id: CallerId | None = None
    group_id: CallerId | None = None
    rollout_id: CallerId | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    idempotency_key: CallerId | None = None

    @model_validator(mode="after")
    def _something_to_make(self) -> LeaseBody:
        if self.template is None and self.image is None:
            raise ValueError("give a template or an image")
        if sum(len(file.data) for file in self.files.values()) > MAX_FILES_BYTES:
            raise ValueError(f"files are limited to {MAX_FILES_BYTES} bytes together")
        return self


class RenewBody(Body):
    """`POST …/renew`; null and -1 mean the most that the template allows."""

    timeout_s: Life | None = None


class GradingBody(Body):
    """`POST …/grading`."""

    timeout_s: Seconds


class TokenBody(Body):
    """`POST …/tokens`."""

    rights: Literal["use", "read"] = "use"
    ttl_s: Annotated[float, Field(gt=0, le=30 * 86400)] = 3600


class NetworkBody(Body):
    """`PUT …/network`."""

    network: Network


class ForwardsBody(Body):
    """`POST …/forwards`: as in a lease; also without `forwards` around it, or one by `port`."""

    forwards: Annotated[Forwards, Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not value or "forwards" in value:
            return value
        if "port" in value:
            rest = {name: each for name, each in value.items() if name != "port"}
            return {"forwards": {str(value["port"]): rest}}
        return {"forwards": value} if all(map(str.isdigit, value)) else value
