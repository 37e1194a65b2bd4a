"""What answers look like, for the OpenAPI document alone: nothing is built or checked with these at
run time, `render` writes answers. A test holds the two together.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from sandboxd.backends.protocol import ImageState
from sandboxd.model.files import FileType
from sandboxd.model.lease import LeaseState, Phase
from sandboxd.model.shell import ShellState
from sandboxd.wire.codes import EndReason, ErrorCode, Fault, Outcome, StartFailure

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


class End(BaseModel):
    """How a lease ended."""

    reason: EndReason
    code: ErrorCode | None
    fault: Fault | None
    mask: bool
    detail: str
    at: float


class Queue(BaseModel):
    """A place in the queue."""

    position: int
    expected_wait_s: float


class Usage(BaseModel):
    """What a lease has used; readings are null where or until they cannot be had."""

    cpu_s: float | None
    memory_peak_bytes: int | None
    disk_bytes: int | None
    execs: int
    cells: int
    leased_s: float
    network_in_bytes: int = Field(description="Through its way out, into it.")
    network_out_bytes: int = Field(description="Through its way out, out of it.")


class Allow(BaseModel):
    """An allow-list."""

    allow: list[str]


class Forward(BaseModel):
    """A port inside that reaches one address outside."""

    port: int
    url: str
    header_names: list[str] = Field(description="Of headers that are added; values never show.")
    ready: bool = Field(description="False: its headers were lost with a daemon; give it again.")


class Sandbox(BaseModel):
    """A lease."""

    id: str
    template: str
    image: str
    state: LeaseState
    phase: Phase
    queue: Queue | None
    created_at: float
    leased_at: float | None
    expires_at: float | None
    idle_expires_at: float | None
    run_id: str | None
    group_id: str | None
    rollout_id: str | None
    labels: dict[str, str]
    backend: str
    warm: bool
    cold_because: list[str]
    lease_wait_s: float | None
    limits: dict[str, Literal["enforced", "watched", "none"]]
    endpoint: str | None
    network: Literal["none", "internet"] | Allow
    proxy: str | None = Field(description="Where the proxy listens inside, if it has a way out.")
    forwards: dict[str, str] = Field(description="Addresses by their ports inside.")
    end: End | None
    usage: Usage


class ExecError(BaseModel):
    """Why a command did not simply exit."""

    code: ErrorCode
    reason: StartFailure | None
    detail: str | None


class Exec(BaseModel):
    """A command. Output is absent in lists and events, base64 with `encoding=base64`."""

    exec_id: str
    state: Literal["running", "ended"]
    outcome: Outcome | None
    exit_code: int | None
    signal: str | None
    status: int | None
    fault: Fault | None
    mask: bool
    oom_kills: int
    stdout: str = ""
    stderr: str = ""
    stdout_b64: str = ""
    stderr_b64: str = ""
    stdout_bytes: int
    stderr_bytes: int
    stdout_truncated: bool
    stderr_truncated: bool
    output_dropped: bool
    duration_s: float
    started_at: float
    error: ExecError | None
    shell_ended: bool = False
    interrupted: bool = False


class ExecEvent(BaseModel):
    """One line of a stream of events."""

    seq: int
    type: Literal["started", "stdout", "stderr", "gap", "keepalive", "ended", "error"]
    stream: Literal["stdout", "stderr"] | None = None
    offset: int | None = None
    bytes: int | None = None
    data: str | None = None
    data_b64: str | None = None
    started_at: float | None = None
    exec: Exec | None = None
    problem: Problem | None = None


class Shell(BaseModel):
    """A shell that remembers."""

    shell_id: str
    state: ShellState
    program: str


class File(BaseModel):
    """What stands at a path."""

    path: str
    name: str
    name_b64: str = Field("", description="The true name where it is not UTF-8.")
    type: FileType
    size: int
    mode: int
    user: str
    group: str
    modified_at: float
    target: str = Field("", description="Where a link points.")


class Page(BaseModel):
    """Part of a list."""

    next_cursor: str | None = Field(description="Given back as `cursor`, the list goes on.")


class Sandboxes(Page):
    """Sandboxes, newest first."""

    sandboxes: list[Sandbox]


class Execs(Page):
    """Commands, newest first."""

    execs: list[Exec]


class Shells(Page):
    """Shells, newest first."""

    shells: list[Shell]


class Files(Page):
    """Files, in the order of their names."""

    files: list[File]


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


class Forwards(Page):
    """The forwards of a sandbox, by port."""

    forwards: list[Forward]


class Released(BaseModel):
    """What a release of many did."""

    released: list[str]
    failed: list[str]


class Token(BaseModel):
    """A token for one sandbox."""

    token: str
    url: str
    expires_at: float


class StdinTaken(BaseModel):
    """How many bytes of its input a command was given in all."""

    offset: int


class Signalled(BaseModel):
    """What a signal hit."""

    delivered: bool
    state: Literal["running", "ended"]


class Size(BaseModel):
    """A terminal's size."""

    rows: int
    cols: int


class Readings(BaseModel):
    """What a sandbox uses at this moment; null where it cannot be had."""

    cpu_s: float | None
    memory_bytes: int | None
    memory_peak_bytes: int | None
    memory_limit_bytes: int | None
    pids: int | None
    disk_free_bytes: int | None
    load_1m: float | None
    execs_running: int


class Unpacked(BaseModel):
    """What an archive brought."""

    files: int
    bytes: int


class Version(BaseModel):
    """What this daemon is and can do."""

    version: str
    api: str
    guest_protocols: list[int]
    backend: str
    capabilities: dict[str, Any]
    limits: dict[str, Literal["enforced", "watched", "none"]]


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


EVENTS: Responses = {
    200: {
        "description": "Lines of JSON, each an ExecEvent.",
        "content": {"application/x-ndjson": {"schema": {"$ref": "#/components/schemas/ExecEvent"}}},
    }
}


def with_problems(document: dict[str, Any]) -> dict[str, Any]:
    """The document with every failure told as what it is, a problem."""
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for model in (Problem, ExecEvent):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = schema
    failure = {
        "description": "A problem, with a code of the closed list.",
        "content": {
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
        },
    }
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = failure
    return document
