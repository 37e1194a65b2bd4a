"""Answers about leases."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from sandboxd.api.shapes.parts import Page
from sandboxd.model.lease import LeaseState, Phase
from sandboxd.wire.codes import EndReason, ErrorCode, Fault


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


class Sandboxes(Page):
    """Sandboxes, newest first."""

    sandboxes: list[Sandbox]


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
