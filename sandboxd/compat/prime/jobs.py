"""Background jobs. They are the clients' own: a script that writes its pid and its exit status to
files of the sandbox. Here they are only asked after, many in one request.
"""

from __future__ import annotations

from typing import Any

import anyio
from fastapi import APIRouter, Request
from starlette.responses import Response

from sandboxd.api.auth import Principal
from sandboxd.api.render import answer, text_of
from sandboxd.api.services import Services, here
from sandboxd.api.strict import StrictRoute
from sandboxd.compat.prime.bodies import Job, JobsBody
from sandboxd.compat.prime.shown import is_vm
from sandboxd.errors import SandboxdError
from sandboxd.execution.commands import shell_argv
from sandboxd.guest.line import GuestLost
from sandboxd.model.command import Command
from sandboxd.model.ids import new_id
from sandboxd.wire.codes import ErrorCode, Outcome

router = APIRouter(
    prefix="/api/v1/sandbox/background-jobs", route_class=StrictRoute, include_in_schema=False
)

_AT_ONCE = 16
_ASK_S = 10.0
# Prints the status once it is written, and `lost` where the process is gone without one. The
# status is looked for again after the process, which writes it just before it ends.
_LOOK = """\
exit=/tmp/job_{job}.exit; pid=/tmp/job_{job}.launch/pid
test -e "$pid" -o -e "$exit" || {{ echo missing; exit; }}
grep -s . "$exit" && exit
grep -qF "$exit" "/proc/$(cat "$pid" 2>/dev/null)/cmdline" 2>/dev/null && exit
grep -s . "$exit" || echo lost"""
_CODES = {
    ErrorCode.NOT_FOUND: "NOT_FOUND",
    ErrorCode.FORBIDDEN: "FORBIDDEN",
    ErrorCode.CONFLICT: "NOT_RUNNING",
    ErrorCode.LEASE_ENDED: "NOT_RUNNING",
    ErrorCode.SANDBOX_LOST: "NOT_RUNNING",
}


class _Refused(Exception):
    """A job of which nothing can be said, and why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@router.post("/status:batchGet", operation_id="prime_jobs")
async def job_statuses(request: Request, body: JobsBody) -> Response:
    """Whether jobs are done, and how; each is told once, as a status or as an error."""
    services, caller = here(request)
    statuses: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    turns = anyio.CapacityLimiter(_AT_ONCE)

    async def ask(job: Job) -> None:
        named = {"sandbox_id": job.sandbox_id, "job_id": job.job_id}
        async with turns:
            try:
                statuses.append(named | await _status(services, job, caller))
            except _Refused as refused:
                errors.append(named | {"code": refused.code, "message": str(refused)})

    async with anyio.create_task_group() as tasks:
        for job in {(each.sandbox_id, each.job_id): each for each in body.jobs}.values():
            tasks.start_soon(ask, job, name=f"job-{job.job_id}")
    return answer({"statuses": statuses, "errors": errors})


async def _status(services: Services, job: Job, caller: Principal) -> dict[str, Any]:
    """Raises _Refused."""
    command = Command(
        exec_id=new_id("exe"), argv=shell_argv(_LOOK.format(job=job.job_id)), timeout_s=_ASK_S
    )
    try:
        tenancy = services.desk.look_at(job.sandbox_id, owner=caller.owner)
        if not is_vm(tenancy.lease):
            raise _Refused("NOT_VM", "its sandbox has the container dialect: read the exit file")
        record = await services.commands.run(
            job.sandbox_id, command, owner=caller.owner, wait_s=None
        )
    except SandboxdError as error:
        raise _Refused(_CODES.get(error.code, "RUNTIME_ERROR"), error.detail) from None
    except (GuestLost, TimeoutError):
        raise _Refused("RUNTIME_ERROR", "the sandbox did not answer in time") from None
    said = text_of(record.stdout).strip()
    if record.outcome is not Outcome.EXITED or (said and not said.lstrip("-").isdecimal()):
        if said == "missing":
            raise _Refused("NOT_FOUND", "there is no such job")
        raise _Refused("RUNTIME_ERROR", "the job ended without a status" if said else "not known")
    return {"completed": True, "exit_code": int(said)} if said else {"completed": False}
