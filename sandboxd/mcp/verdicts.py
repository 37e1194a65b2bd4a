"""What callers hear of a server that is dead or did not start, and whose doing it was. Pure.

Causes come from the record of its process alone.
"""

from __future__ import annotations

from typing import Any

from sandboxd.errors import SandboxdError
from sandboxd.model.command import ExecRecord
from sandboxd.wire.codes import ErrorCode, Fault, Outcome, StartFailure, exec_verdict

_OF_THE_TASK = {StartFailure.NOT_FOUND, StartFailure.NOT_EXECUTABLE, StartFailure.TOO_LONG}


def death(name: str, record: ExecRecord, *, restarted: bool = False) -> SandboxdError:
    """Of a server that had answered. Who had it end by itself, its own faults or the model, its
    record does not say. restarted: it is started anew, without its state.
    """
    fault, mask = Fault.UNKNOWN, True
    if record.outcome not in {Outcome.EXITED, Outcome.SIGNALED, None}:
        cause = exec_verdict(record.outcome, reason=record.reason, host_short=record.host_short)
        fault, mask = cause.fault or Fault.UNKNOWN, cause.mask
    mend = "it was started anew; call again" if restarted else "lease another sandbox"
    return SandboxdError(
        ErrorCode.CONFLICT,
        f"the MCP server {name!r} has died ({_how(record)}), and its state is gone: {mend}",
        fault=fault,
        mask=mask,
        details={"reason": "mcp_server_died", "server": name, **_evidence(record)},
        status=502,
    )


def not_started(name: str, record: ExecRecord) -> SandboxdError:
    """Of a server that ended before it answered: the task's doing, unless the record says that
    something was short.
    """
    fault, mask = Fault.TASK, True
    unlaunched = record.outcome is Outcome.START_FAILED and record.reason not in _OF_THE_TASK
    if record.from_inside or record.host_short or record.outcome in {Outcome.OOM, Outcome.LOST}:
        cause = exec_verdict(
            record.outcome or Outcome.LOST, reason=record.reason, host_short=record.host_short
        )
        fault, mask = cause.fault or Fault.UNKNOWN, cause.mask
    elif unlaunched and record.reason not in {StartFailure.BAD_CWD, StartFailure.BAD_USER}:
        fault = Fault.UNKNOWN
    words = record.last_words()
    return SandboxdError(
        ErrorCode.START_FAILED,
        f"the MCP server {name!r} ended before it answered ({_how(record)})"
        + (f": {words}" if words else ""),
        fault=fault,
        mask=mask,
        details={"server": name, **_evidence(record)},
    )


def not_listening(name: str, port: int, within_s: float) -> SandboxdError:
    """Of a server that runs, and takes no connection."""
    return SandboxdError(
        ErrorCode.START_FAILED,
        f"the MCP server {name!r} was started, and nobody listens on port {port} after "
        f"{within_s:g} s",
        fault=Fault.TASK,
        mask=True,
        details={"server": name, "port": port},
    )


def _how(record: ExecRecord) -> str:
    if record.outcome is Outcome.EXITED:
        return f"exit code {record.exit_code}"
    if record.outcome is Outcome.SIGNALED:
        return f"signal {record.signal}"
    return str(record.detail or record.outcome)


def _evidence(record: ExecRecord) -> dict[str, Any]:
    return {
        "outcome": record.outcome,
        "exit_code": record.exit_code,
        "signal": record.signal,
        "stderr_tail": record.last_words(),
    }
