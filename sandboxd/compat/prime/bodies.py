"""Bodies of the control plane, as clients of either dialect send them.

Fields that mean nothing here are named, so that one which does mean something is never passed over.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from sandboxd.api.schemas.fields import AllowEntry, Body, CallerId, Environment, Port, Text

MAX_BATCH = 100
MAX_LABELS = 32  # what is kept beside them shares the lease's 64
_MAX_ENTRIES = 1024

Label = Annotated[Text, StringConstraints(min_length=1, max_length=256)]
Entries = Annotated[list[Text], Field(max_length=_MAX_ENTRIES)]
AllowEntries = Annotated[list[AllowEntry], Field(max_length=_MAX_ENTRIES)]
JobId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
SandboxIds = Annotated[list[Text], Field(min_length=1, max_length=MAX_BATCH)]


def _life(minutes: int) -> int:
    if minutes < 1 and minutes != -1:
        raise ValueError("give minutes, or -1 for as long as may be")
    return minutes


def _none_as_empty(value: Any) -> Any:
    return {} if value is None else value


Variables = Annotated[Environment, BeforeValidator(_none_as_empty)]


class StartCommand(Body):
    """What runs from the beginning, without a shell."""

    executable: Annotated[Text, StringConstraints(min_length=1)]
    args: list[Text] = Field(default_factory=list)


class EgressLists(Body):
    """What may be reached; one list at most. An empty list is the rule alone: none, or all."""

    allowlist: AllowEntries | None = None
    denylist: Entries | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> EgressLists:
        if self.allowlist is not None and self.denylist is not None:
            raise ValueError("give allowlist or denylist, not both")
        return self


class CreateBody(Body):
    """`POST /sandbox`."""

    name: Annotated[Text, StringConstraints(max_length=256)] = ""
    docker_image: Annotated[Text, StringConstraints(min_length=1, max_length=256)] | None = None
    start_command: StartCommand | Text | None = None
    cpu_cores: Annotated[float, Field(gt=0, le=1024, allow_inf_nan=False)] = 1.0
    memory_gb: Annotated[float, Field(gt=0, le=1 << 14, allow_inf_nan=False)] = 1.0
    disk_size_gb: Annotated[float, Field(gt=0, le=1 << 20, allow_inf_nan=False)] = 5.0
    gpu_count: Annotated[int, Field(ge=0, le=64)] = 0
    gpu_type: Text | None = None
    vm: bool | None = None
    network_allowlist: AllowEntries | None = None
    network_denylist: Entries | None = None
    network_access: bool | None = None
    timeout_minutes: Annotated[int, Field(le=10 * 525_600), AfterValidator(_life)] = 60
    idle_timeout_minutes: Annotated[int, Field(ge=1, le=525_600)] | None = None
    environment_vars: Variables = Field(default_factory=dict)
    secrets: Annotated[Variables, Field(repr=False)] = Field(default_factory=dict)
    labels: Annotated[list[Label], Field(max_length=MAX_LABELS)] = Field(default_factory=list)
    idempotency_key: CallerId | None = None
    # What is not here, and refused by name:
    checkpoint_id: Text | None = None
    volumes: list[Any] | None = None
    registry_credentials_id: Text | None = None
    # What means nothing where there is one owner, one region and one kind of machine:
    arch: Literal["amd64", "arm64"] | None = None
    team_id: Text | None = None
    region: Text | None = None
    guaranteed: bool | None = None
    advanced_configs: dict[str, Any] | None = None

    @property
    def egress(self) -> EgressLists:
        """What it may reach, as far as it was said."""
        return EgressLists(allowlist=self.network_allowlist, denylist=self.network_denylist)

    @model_validator(mode="after")
    def _fits_together(self) -> CreateBody:
        if self.docker_image is None and self.checkpoint_id is None:
            raise ValueError("give a docker_image")
        _ = self.egress  # its own check
        return self


class BulkDeleteBody(Body):
    """`DELETE /sandbox`: by ids, or all that have those labels."""

    sandbox_ids: Annotated[list[Text], Field(max_length=1000)] | None = None
    labels: Annotated[list[Label], Field(max_length=MAX_LABELS)] | None = None
    team_id: Text | None = None
    user_id: Text | None = None
    all_users: bool = False

    @model_validator(mode="after")
    def _something(self) -> BulkDeleteBody:
        if not self.sandbox_ids and not self.labels:
            raise ValueError("give sandbox_ids or labels: deleting all needs a filter")
        return self


class StatusesBody(Body):
    """`POST /sandbox/status:batchGet`."""

    sandbox_ids: SandboxIds


class Job(Body):
    """A background job: the client's own, kept in files of the sandbox."""

    sandbox_id: Text
    job_id: JobId


class JobsBody(Body):
    """`POST /sandbox/background-jobs/status:batchGet`."""

    jobs: Annotated[list[Job], Field(min_length=1, max_length=MAX_BATCH)]


class EgressBody(EgressLists):
    """`PUT …/egress-policy`."""

    @model_validator(mode="after")
    def _exactly_one(self) -> EgressBody:
        if self.allowlist is None and self.denylist is None:
            raise ValueError("give allowlist or denylist")
        return self


class ExposeBody(Body):
    """`POST …/expose`."""

    port: Port
    name: Annotated[Text, StringConstraints(max_length=256)] | None = None
    protocol: Literal["HTTP", "TCP"] = "HTTP"


class ExecBody(Body):
    """`POST …/exec`: a command of the container dialect. timeout: seconds."""

    command: Text
    working_dir: Text | None = None
    env: Variables = Field(default_factory=dict)
    sandbox_id: Text | None = None
    timeout: Annotated[float, Field(gt=0, le=366 * 86400, allow_inf_nan=False)] = 300
    user: Text | None = None
