"""Commands: run, watched, fed and signalled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sandboxd.api import render
from sandboxd.api.paging import Cursor, Limit, page
from sandboxd.api.schemas.commands import ExecBody, SignalBody, TtyBody
from sandboxd.api.services import here, request_id_of
from sandboxd.api.shapes.commands import Exec, Execs, Signalled, Size, StdinTaken
from sandboxd.api.shapes.document import EVENTS
from sandboxd.api.shapes.parts import answers, raw, takes
from sandboxd.api.streams import Lines, ndjson, waiting
from sandboxd.api.strict import StrictRoute
from sandboxd.execution.commands import KeepAlive, shell_argv
from sandboxd.guest.attachment import OutputStream
from sandboxd.model.command import Command, ExecRecord, TerminalSize
from sandboxd.model.ids import new_id

router = APIRouter(
    prefix="/v1/sandboxes/{sandbox_id}/execs", tags=["execs"], route_class=StrictRoute
)

Encoding = Annotated[render.Encoding, Query()]
WaitS = Annotated[float, Query(ge=0, le=3600)]
Offset = Annotated[int, Query(ge=0, le=1 << 62)]

_SHORT_S = 1.0  # a command that ends sooner is not worth watching its caller for


@router.post("", operation_id="run_exec", responses=answers(Exec, 200, 202))
async def run_exec(
    request: Request,
    sandbox_id: str,
    body: ExecBody,
    encoding: Encoding = "text",
    wait_s: Annotated[float | None, Query(ge=0, le=86400)] = None,
) -> Response:
    """Create or attach: 200 when the command ended, 202 while it runs (`detach`, after `wait_s`).

    With `Accept: application/x-ndjson` its events as they come.
    """
    services, caller = here(request)
    command = _command(body)
    commands, owner = services.commands, caller.owner
    if "application/x-ndjson" in request.headers.get("accept", ""):
        await commands.start(sandbox_id, command, owner=owner)
        return _events(
            request, sandbox_id, command.exec_id, after=None, encoding=encoding, begun=True
        )
    if body.detach:
        record = await commands.start(sandbox_id, command, owner=owner)
        return render.answer(render.execution(record, encoding=encoding), status=202)
    first = _SHORT_S if wait_s is None else min(wait_s, _SHORT_S)
    record = await commands.run(sandbox_id, command, owner=owner, wait_s=first)
    if record.outcome is None and wait_s != first:
        record = await waiting(
            request,
            lambda: commands.run(
                sandbox_id,
                command,
                owner=owner,
                wait_s=None if wait_s is None else wait_s - first,
                again=True,
            ),
        )
    return _answer(record, encoding)


@router.get("", operation_id="list_execs", responses=answers(Execs))
async def list_execs(
    request: Request, sandbox_id: str, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """The commands of the sandbox, newest first, without output."""
    services, caller = here(request)
    records = await services.commands.list(sandbox_id, owner=caller.owner)
    shown, next_cursor = page(
        records, key=lambda record: (record.started_at, record.exec_id), limit=limit, cursor=cursor
    )
    execs = [render.execution(record, output=False) for record in shown]
    return render.answer({"execs": execs, "next_cursor": next_cursor})


@router.get("/{exec_id}", operation_id="get_exec", responses=answers(Exec))
async def get_exec(
    request: Request,
    sandbox_id: str,
    exec_id: str,
    encoding: Encoding = "text",
    wait_s: WaitS = 0,
) -> Response:
    """One command; with `wait_s` once it ended, or that time has passed."""
    services, caller = here(request)
    owner = caller.owner
    if wait_s == 0:
        record = await services.commands.look(sandbox_id, exec_id, owner=owner)
    else:
        record = await waiting(
            request,
            lambda: services.commands.look(sandbox_id, exec_id, owner=owner, wait_s=wait_s),
        )
    return render.answer(render.execution(record, encoding=encoding))


@router.get(
    "/{exec_id}/output",
    operation_id="read_exec_output",
    responses=raw("application/octet-stream"),
    response_class=Response,
)
async def read_exec_output(
    request: Request,
    sandbox_id: str,
    exec_id: str,
    stream: OutputStream = "stdout",
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=16 << 20)] = 1 << 20,
    wait_s: WaitS = 0,
) -> Response:
    """Raw bytes of one stream from an offset; 416 with `details.kept` for what was not kept."""
    services, caller = here(request)
    piece = await waiting(
        request,
        lambda: services.commands.read_output(
            sandbox_id,
            exec_id,
            owner=caller.owner,
            stream=stream,
            offset=offset,
            limit=limit,
            wait_s=wait_s,
        ),
    )
    headers = {"X-Next-Offset": str(piece.next_offset), "X-Ended": str(int(piece.ended))}
    return Response(piece.data, media_type="application/octet-stream", headers=headers)


@router.get(
    "/{exec_id}/events", operation_id="follow_exec", responses=EVENTS, response_class=Response
)
async def follow_exec(
    request: Request,
    sandbox_id: str,
    exec_id: str,
    after: Annotated[int | None, Query(ge=0, le=1 << 62)] = None,
    encoding: Encoding = "text",
) -> Response:
    """Events of a command, from the one after `after` on, as NDJSON."""
    return _events(request, sandbox_id, exec_id, after=after, encoding=encoding)


@router.post(
    "/{exec_id}/stdin",
    operation_id="write_exec_stdin",
    openapi_extra=takes("application/octet-stream"),
    responses=answers(StdinTaken),
)
async def write_exec_stdin(
    request: Request,
    sandbox_id: str,
    exec_id: str,
    offset: Annotated[int | None, Query(ge=0, le=1 << 62)] = None,
    eof: bool = False,
) -> Response:
    """Write to a command's input; bytes that it has already taken are skipped."""
    services, caller = here(request)
    taken = await services.commands.write_stdin(
        sandbox_id, exec_id, _pieces(request), owner=caller.owner, offset=offset, eof=eof
    )
    return render.answer({"offset": taken})


@router.post("/{exec_id}/signal", operation_id="signal_exec", responses=answers(Signalled))
async def signal_exec(
    request: Request,
    sandbox_id: str,
    exec_id: str,
    body: SignalBody,
) -> Response:
    """Signal a command: `delivered` is false if it had ended already."""
    services, caller = here(request)
    name = body.signal.removeprefix("SIG")
    delivered = await services.commands.signal(sandbox_id, exec_id, name, owner=caller.owner)
    return render.answer({"delivered": delivered, "state": "running" if delivered else "ended"})


@router.post("/{exec_id}/resize", operation_id="resize_exec", responses=answers(Size))
async def resize_exec(
    request: Request,
    sandbox_id: str,
    exec_id: str,
    body: TtyBody,
) -> Response:
    """Set the size of a command's terminal; 409 for a command without one."""
    services, caller = here(request)
    await services.commands.resize(
        sandbox_id, exec_id, rows=body.rows, cols=body.cols, owner=caller.owner
    )
    return render.answer({"rows": body.rows, "cols": body.cols})


def _command(body: ExecBody) -> Command:
    return Command(
        exec_id=body.exec_id or new_id("exe"),
        argv=shell_argv(body.cmd) if isinstance(body.cmd, str) else tuple(body.cmd),
        env=body.env,
        cwd=body.cwd,
        user=body.user,
        stdin=body.input,
        stdin_open=body.stdin_open,
        timeout_s=body.timeout_s,
        output_limit_bytes=body.output_limit_bytes,
        tty=None if body.tty is None else TerminalSize(body.tty.rows, body.tty.cols),
    )


def _answer(record: ExecRecord, encoding: render.Encoding) -> Response:
    status = 202 if record.outcome is None else 200
    return render.answer(render.execution(record, encoding=encoding), status=status)


def _events(
    request: Request,
    sandbox_id: str,
    exec_id: str,
    *,
    after: int | None,
    encoding: render.Encoding,
    begun: bool = False,
) -> Response:
    services, caller = here(request)

    async def lines() -> Lines:
        seq = after or 0
        follow = services.commands.follow(
            sandbox_id, exec_id, owner=caller.owner, after=after, begun=begun
        )
        async with aclosing(follow) as events:
            async for event in events:
                if not isinstance(event, KeepAlive):
                    seq = event.seq
                yield seq, render.event_line(event, seq=seq, encoding=encoding)

    return ndjson(request, lines, request_id=request_id_of(request))


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    async for piece in request.stream():
        if piece:
            yield piece
