"""What requests look like. Unknown fields are refused by name; nothing here decides anything."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from sandboxd.egress.rules import read_entry
from sandboxd.egress.targets import read_forward
from sandboxd.model.ids import CALLER_ID_PATTERN, is_caller_id

MAX_ENV_BYTES = 1 << 20
MAX_FILES_BYTES = 16 << 20
MAX_LABELS = 64
_SIGNAL = r"^(SIG)?[A-Z0-9+-]{2,12}$"
MAX_SECONDS = 10 * 365 * 86400.0


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain a NUL character")
    return text


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must not contain a lone surrogate") from None
    return text


def _caller_id(text: str) -> str:
    if not is_caller_id(text):
        raise ValueError(f"must match {CALLER_ID_PATTERN}")
    return text


def _environment(env: dict[str, str]) -> dict[str, str]:
    for name in env:
        if not name or "=" in name:
            raise ValueError("a variable's name must not be empty and must not contain '='")
    size = sum(len(name.encode()) + len(value.encode()) + 2 for name, value in env.items())
    if size > MAX_ENV_BYTES:
        raise ValueError(f"is limited to {MAX_ENV_BYTES} bytes")
    return env


def _labels(labels: dict[str, str]) -> dict[str, str]:
    if len(labels) > MAX_LABELS:
        raise ValueError(f"at most {MAX_LABELS} labels")
    for key, value in labels.items():
        if not 0 < len(key) <= 63 or len(value) > 256:
            raise ValueError("a label has a key of 1 to 63 and a value of at most 256 characters")
    return labels


def _octal(value: Any) -> Any:
    """Permission bits as text are octal digits, as everywhere; as a number they are that number."""
    if isinstance(value, str):
        try:
            return int(value, 8)
        except ValueError:
            raise ValueError("give a number, or text of octal digits like 0644") from None
    return value


def _bytes(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            raise ValueError("is not base64") from None
    return value


def _allow_entry(text: str) -> str:
    read_entry(text)
    return text


def _forward_url(text: str) -> str:
    read_forward(text)
    return text


def _port(value: Any) -> Any:
    """A port as the name of a field."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


Text = Annotated[str, AfterValidator(_no_nul), AfterValidator(_encodable)]
Base64 = Annotated[bytes, BeforeValidator(_bytes), Field(json_schema_extra={"format": "base64"})]
CallerId = Annotated[
    str, AfterValidator(_caller_id), Field(json_schema_extra={"pattern": CALLER_ID_PATTERN})
]
Environment = Annotated[dict[Text, Text], AfterValidator(_environment)]
Labels = Annotated[dict[Text, Text], AfterValidator(_labels)]
Path = Annotated[Text, StringConstraints(min_length=1, max_length=65536)]
ImageReference = Annotated[Text, StringConstraints(min_length=1, max_length=4096)]
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS, allow_inf_nan=False)]
Life = Seconds | Literal[-1]
Mode = Annotated[int, BeforeValidator(_octal), Field(ge=0, le=0o7777)]
OutputLimit = Annotated[int, Field(ge=1024, le=64 << 20)]


AllowEntry = Annotated[str, StringConstraints(max_length=300), AfterValidator(_allow_entry)]
Port = Annotated[int, BeforeValidator(_port), Field(ge=1, le=65535)]
ForwardUrl = Annotated[str, StringConstraints(max_length=2048), AfterValidator(_forward_url)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")]
HeaderValue = Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e\t]{0,8192}$")]
Argv = Annotated[list[Text], Field(min_length=1)]


def _kind_of_cmd(cmd: Any) -> str:
    return "argv" if isinstance(cmd, list) else "text"


class Body(BaseModel):
    """A request body: no field that is not named here."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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
    network: Network | None = None
    runtime: Text | None = None
    kernels: list[Text] | None = None
    mcp_servers: list[Text] | dict[Text, Any] | None = None
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


class TtyBody(Body):
    """A terminal's size."""

    rows: Annotated[int, Field(ge=1, le=65535)]
    cols: Annotated[int, Field(ge=1, le=65535)]


class ExecBody(Body):
    """`POST …/execs`. A list is run as it is, a text by `/bin/sh -c`."""

    cmd: Annotated[
        Annotated[Argv, Tag("argv")] | Annotated[Text, Tag("text")], Discriminator(_kind_of_cmd)
    ]
    env: Environment = Field(default_factory=dict)
    cwd: Text = ""
    user: Text = ""
    stdin: Annotated[str, AfterValidator(_encodable)] | None = None
    stdin_b64: Base64 | None = None
    stdin_open: bool = False
    timeout_s: Seconds | None = None
    output_limit_bytes: OutputLimit = 1 << 20
    tty: TtyBody | None = None
    detach: bool = False
    exec_id: CallerId | None = None

    @model_validator(mode="after")
    def _one_input(self) -> ExecBody:
        if self.stdin is not None and self.stdin_b64 is not None:
            raise ValueError("give stdin or stdin_b64, not both")
        return self

    @property
    def input(self) -> bytes | None:
        """The input given with the command."""
        return self.stdin.encode() if self.stdin is not None else self.stdin_b64


class SignalBody(Body):
    """`POST …/signal`."""

    signal: Annotated[str, StringConstraints(pattern=_SIGNAL)]


class AttachOrder(Body):
    """A JSON frame to `…/attach`: one of the two, or both."""

    resize: TtyBody | None = None
    signal: Annotated[str, StringConstraints(pattern=_SIGNAL)] | None = None


class ShellBody(Body):
    """`POST …/shells`."""

    cwd: Text = ""
    env: Environment = Field(default_factory=dict)
    user: Text = ""
    shell_id: CallerId | None = None


class ShellRunBody(Body):
    """`POST …/shells/{sid}/run`."""

    text: Annotated[Text, StringConstraints(max_length=8 << 20)]
    timeout_s: Seconds | None = None
    output_limit_bytes: OutputLimit = 1 << 20
    exec_id: CallerId | None = None


class MkdirBody(Body):
    """`POST …/files/mkdir`."""

    path: Path
    mode: Mode = 0o755
    parents: bool = True
    user: Text = ""


class MoveBody(Body):
    """`POST …/files/move`."""

    source: Path = Field(alias="from")
    to: Path
    overwrite: bool = True
    user: Text = ""


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
