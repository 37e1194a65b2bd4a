"""Shells that remember."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sandboxd.api import render
from sandboxd.api.paging import Cursor, Limit, page
from sandboxd.api.schemas.commands import ShellBody, ShellRunBody
from sandboxd.api.services import here
from sandboxd.api.shapes.commands import Exec, Shell, Shells
from sandboxd.api.shapes.parts import answers
from sandboxd.api.streams import waiting
from sandboxd.api.strict import StrictRoute
from sandboxd.model.ids import new_id
from sandboxd.model.shell import ShellOrder, ShellText

router = APIRouter(
    prefix="/v1/sandboxes/{sandbox_id}/shells", tags=["shells"], route_class=StrictRoute
)


_PLAIN = ShellBody()  # what an empty body stands for


@router.post("", status_code=201, operation_id="open_shell", responses=answers(Shell, 201))
async def open_shell(
    request: Request,
    sandbox_id: str,
    body: ShellBody = _PLAIN,
) -> Response:
    """Open a shell: bash where there is one, else sh."""
    services, caller = here(request)
    order = ShellOrder(
        shell_id=body.shell_id or new_id("she"), env=body.env, cwd=body.cwd, user=body.user
    )
    shell = await services.shells.open(sandbox_id, order, owner=caller.owner)
    return render.answer(render.shell(shell), status=201)


@router.get("", operation_id="list_shells", responses=answers(Shells))
async def list_shells(
    request: Request, sandbox_id: str, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """The shells of the sandbox, newest first."""
    services, caller = here(request)
    shells = await services.shells.list(sandbox_id, owner=caller.owner)
    shown, next_cursor = page(
        enumerate(reversed(shells)),
        key=lambda numbered: (numbered[0], numbered[1].shell_id),
        limit=limit,
        cursor=cursor,
    )
    told = [render.shell(shell) for _, shell in shown]
    return render.answer({"shells": told, "next_cursor": next_cursor})


@router.get("/{shell_id}", operation_id="get_shell", responses=answers(Shell))
async def get_shell(
    request: Request,
    sandbox_id: str,
    shell_id: str,
) -> Response:
    """One shell."""
    services, caller = here(request)
    shell = await services.shells.look(sandbox_id, shell_id, owner=caller.owner)
    return render.answer(render.shell(shell))


@router.delete("/{shell_id}", status_code=204, operation_id="close_shell")
async def close_shell(
    request: Request,
    sandbox_id: str,
    shell_id: str,
) -> Response:
    """End a shell and what runs in it."""
    services, caller = here(request)
    await services.shells.close(sandbox_id, shell_id, owner=caller.owner)
    return Response(status_code=204)


@router.post("/{shell_id}/run", operation_id="run_in_shell", responses=answers(Exec, 200, 202))
async def run_in_shell(
    request: Request,
    sandbox_id: str,
    shell_id: str,
    body: ShellRunBody,
    encoding: Annotated[render.Encoding, Query()] = "text",
    wait_s: Annotated[float | None, Query(ge=0, le=86400)] = None,
) -> Response:
    """Run text in a shell: 200 when it ended, 202 if it still runs after `wait_s`."""
    services, caller = here(request)
    text = ShellText(
        exec_id=body.exec_id or new_id("exe"),
        text=body.text,
        timeout_s=body.timeout_s,
        output_limit_bytes=body.output_limit_bytes,
    )
    record = await waiting(
        request,
        lambda: services.shells.run(sandbox_id, shell_id, text, owner=caller.owner, wait_s=wait_s),
    )
    status = 202 if record.outcome is None else 200
    return render.answer(render.execution(record, encoding=encoding), status=status)
