"""Templates that bring a cause about, and what a verdict looks like to whoever is told it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from sandboxd_client import (
    ExecResult,
    LeaseEnded,
    Sandbox,
    SandboxdError,
    SandboxInfo,
    SandboxLost,
)
from tests.conftest import EngineHost
from tests.contract.speaker import eventually

MEMORY_MB = 96
PIDS = 64
DISK_MB = 24

_TEMPLATES = """
[templates.small]
image = {image}
resources = {{memory_mb = {memory_mb}, pids = {pids}, disk_mb = {disk_mb}}}
pool = {{ready = 0, max = 8}}

[templates.missing]
image = {missing}
pull = "never"
pool = {{ready = 0, max = 2}}

[templates.failing]
image = {image}
setup = ["true", "echo no such wheel >&2; exit 3"]
pool = {{ready = 0, max = 2}}

[templates.hanging]
image = {image}
setup = ["sleep 300"]
setup_timeout_s = 1
pool = {{ready = 0, max = 2}}

[templates.greedy]
image = {image}
resources = {{memory_mb = {memory_mb}, pids = {pids}}}
setup = ["exec python3 -c 'held = bytearray(b\\"x\\" * (400 << 20))'"]
pool = {{ready = 0, max = 2}}
"""


def templates(below: EngineHost | None) -> str:
    """Their configuration, on that engine or none."""
    return _TEMPLATES.format(
        image=json.dumps("host" if below is None else below.image),
        missing=json.dumps("/nope" if below is None else "sandboxd/nope:1"),
        memory_mb=MEMORY_MB,
        pids=PIDS,
        disk_mb=DISK_MB,
    )


@dataclass(frozen=True, slots=True)
class Told:
    """An end as its row in the table says it."""

    reason: str
    code: str | None
    fault: str | None
    mask: bool


RELEASED = Told("released", None, None, mask=False)
EXPIRED = Told("expired", "lease_ended", "client", mask=True)
IDLE = Told("idle", "lease_ended", "client", mask=True)
RUN_LOST = Told("run_lost", "lease_ended", "client", mask=True)
DIED_FOR_UNKNOWN = Told("died", "sandbox_lost", "unknown", mask=True)
DIED_BY_ITSELF = Told("died", "sandbox_lost", "agent", mask=False)
OOM_OF_ITS_OWN = Told("oom", "oom", "agent", mask=False)
OOM_OF_THE_HOST = Told("oom", "oom", "infra", mask=True)
DISK = Told("disk", "disk_full", "agent", mask=False)
NODE_LOST = Told("node_lost", "sandbox_lost", "infra", mask=True)
SHUTDOWN = Told("shutdown", "sandbox_lost", "infra", mask=True)


def ended(sandbox: Sandbox, *, within_s: float = 20) -> SandboxInfo:
    """The sandbox once it is over."""
    eventually(lambda: sandbox.info().end is not None, within_s=within_s, what="it ends")
    return sandbox.info()


def assert_ended(sandbox: Sandbox, told: Told, *, within_s: float = 20) -> dict[str, Any]:
    """It ended so for everybody: its record, the next call, the SDK's class, its log.

    Returns the evidence that the log holds; empty for an end that needs none.
    """
    info = ended(sandbox, within_s=within_s)
    assert info.end is not None
    end = info.end
    assert Told(end.reason, end.code, end.fault, mask=end.mask) == told, end
    error = refused(lambda: sandbox.exec("true"))
    assert type(error) is (LeaseEnded if told.code in {None, "lease_ended"} else SandboxLost)
    assert error.details["end"]["reason"] == told.reason
    assert error.details["end"]["at"] == end.at
    if told.fault is not None:
        assert (error.fault, error.mask) == (told.fault, told.mask)
    assert not error.retry_safe
    log = list(sandbox.logs())
    (last,) = [line for line in log if line["event"] == "ended"]
    assert (last["reason"], last["detail"]) == (told.reason, end.detail)
    return next((line["evidence"] for line in log if line["event"] == "died"), {})


def refused(call: Callable[[], object]) -> SandboxdError:
    """What a call is answered that cannot be carried out."""
    with pytest.raises(SandboxdError) as caught:
        call()
    return caught.value


def verdict(result: ExecResult) -> tuple[str | None, str | None, str | None, bool, int | None]:
    """A command's outcome, code, fault, mask and status."""
    code = None if result.error is None else result.error.code
    return result.outcome, code, result.fault, result.mask, result.status


def problem_verdict(error: SandboxdError) -> tuple[str, str, bool, bool]:
    """An error's code, fault, mask and retry_safe."""
    return error.code, error.fault, error.mask, error.retry_safe
