"""The gateway of one sandbox: files in and out, and commands of the container dialect."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sandboxd.api.render import answer, status_number, text_of, verdict_of
from sandboxd.api.services import here
from sandboxd.api.streams import Emit, Flow, StartBody, waiting
from sandboxd.compat.prime.bodies import ExecBody
from sandboxd.compat.prime.multipart import boundary_of, only_file
from sandboxd.compat.prime.refusals import GatewayRoute, refusal
from sandboxd.compat.prime.running import SHELL, begin
from sandboxd.compat.prime.shown import when
from sandboxd.errors import SandboxdError
from sandboxd.model.command import Command, ExecRecord
from sandboxd.model.ids import new_id
from sandboxd.wire.codes import ErrorCode, Fault, Outcome

router = APIRouter(
    prefix="/v1/sandboxes/{sandbox_id}/prime", route_class=GatewayRoute, include_in_schema=False
)

_MAX_TEXT_BYTES = 16 << 20
_OUTPUT_BYTES = 8 << 20

Path = Annotated[str, Query(min_length=1, max_length=65536, pattern=r"^[^\x00]*$")]
SameId = Annotated[str | None, Query(alias="sandbox_id")]


@router.post("/upload", operation_id="prime_upload")
async def upload(request: Request, sandbox_id: str, path: Path, same: SameId = None) -> Response:
    """Write a whole file, atomically, with its parents."""
    services, caller = here(request)
    try:
        boundary = boundary_of(request.headers.get("content-type", ""))
        async with aclosing(only_file(_pieces(request), boundary)) as body:
            info, _ = await services.files.write(
                sandbox_id, path, body, owner=caller.owner, size=None, mode=None, user=""
            )
    except ValueError as error:
        raise SandboxdError(ErrorCode.BAD_REQUEST, str(error)) from None
    told = {"success": True, "path": info.path, "size": info.size}
    return answer({**told, "timestamp": when(info.modified_at)})


@router.get("/download", operation_id="prime_download")
async def download(
    request: Request,
    sandbox_id: str,
    path: Path,
    same: SameId = None,
) -> Response:
    """A file's bytes."""
    services, caller = here(request)

    async def source(start: StartBody, emit: Emit) -> None:
        async with services.files.read(
            sandbox_id, path, owner=caller.owner, offset=0, limit=None, user=""
        ) as body:
            headers = {"Content-Type": "application/octet-stream"}
            await start(200, headers | {"Content-Length": str(body.size)})
            async for piece in body.chunks():
                await emit(piece)

    # What can be refused is refused here: once it flows, it is told in our own form.
    info = await services.files.stat(sandbox_id, path, owner=caller.owner, follow=True, user="")
    if info.type == "directory":
        raise SandboxdError(ErrorCode.FILE_IS_DIRECTORY, f"{path}: is a directory")
    return Flow(source)


@router.get("/read-file", operation_id="prime_read_file")
async def read_file(
    request: Request,
    sandbox_id: str,
    path: Path,
    offset: Annotated[int, Query(ge=-(1 << 62), le=1 << 62)] = 0,
    length: Annotated[int | None, Query(ge=0, le=1 << 62)] = None,
) -> Response:
    """A file, or a window of it, as text; a negative offset counts from the end."""
    services, caller = here(request)
    owner = caller.owner
    info = await services.files.stat(sandbox_id, path, owner=owner, follow=True, user="")
    first = max(0, info.size + offset) if offset < 0 else offset
    wanted = info.size - first if length is None else length
    if wanted > _MAX_TEXT_BYTES:
        raise SandboxdError(
            ErrorCode.TOO_LARGE,
            f"{wanted} bytes are more than the {_MAX_TEXT_BYTES} of one answer: "
            "download the file, or read it in windows of offset and length",
        )
    async with services.files.read(
        sandbox_id, path, owner=owner, offset=first, limit=max(0, wanted), user=""
    ) as body:
        data = b"".join([piece async for piece in body.chunks()])
        total = body.total_size
    told = {
        "content": data.decode(errors="replace"),
        "size": len(data),
        "total_size": total,
        "offset": first,
        "truncated": first + len(data) < total,
    }
    return answer(told)


@router.post("/exec", operation_id="prime_exec")
async def execute(request: Request, sandbox_id: str, body: ExecBody) -> Response:
    """Run a command to its end; 408 where it met its deadline, which killed it."""
    services, caller = here(request)
    command = Command(
        exec_id=new_id("exe"),
        argv=(SHELL, "-c", body.command),
        env=body.env,
        cwd=body.working_dir or "",
        user=body.user or "",
        timeout_s=body.timeout,
        output_limit_bytes=_OUTPUT_BYTES,
    )
    record = await waiting(
        request,
        lambda: begin(services, sandbox_id, command, owner=caller.owner, wait_s=None),
    )
    if record.outcome is Outcome.TIMEOUT:
        text = f"the command did not end within {body.timeout:g} s, and was killed"
        late = SandboxdError(ErrorCode.TIMEOUT, text, fault=Fault.AGENT, mask=False, status=408)
        return refusal(request, late)
    return answer(result_of(record))


def result_of(record: ExecRecord) -> dict[str, Any]:
    """Raises for an end that says nothing of the command: nobody may take that for its result."""
    verdict = verdict_of(record)
    if verdict is None or verdict.mask:
        by_caller = verdict is not None and verdict.fault is Fault.CLIENT
        raise SandboxdError(
            (verdict and verdict.code) or ErrorCode.INTERNAL,
            record.detail or f"the command's end is not known: {record.outcome}",
            fault=None if verdict is None else verdict.fault,
            mask=True,
            status=400 if by_caller else 500,
        )
    stderr = text_of(record.stderr)
    if record.outcome is Outcome.START_FAILED:
        stderr += f"{record.detail}\n"
    code = status_number(record)
    return {"stdout": text_of(record.stdout), "stderr": stderr, "exit_code": code}


async def _pieces(request: Request) -> AsyncGenerator[bytes, None]:
    stream: AsyncIterator[bytes] = request.stream()
    async for piece in stream:
        if piece:
            yield piece
