"""Jupyter kernels and their cells."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic_core import to_json
from starlette.responses import Response

from sandboxd.api import render, render_kernels
from sandboxd.api.paging import Cursor, Limit, page
from sandboxd.api.schemas.kernels import CellBody, CodeBody, InputBody, KernelBody
from sandboxd.api.services import Services, here, request_id_of
from sandboxd.api.shapes.kernels import Cell, Kernel, Kernels
from sandboxd.api.shapes.parts import answers, raw
from sandboxd.api.streams import ndjson, waiting
from sandboxd.api.strict import StrictRoute
from sandboxd.model.ids import new_id
from sandboxd.model.kernel import CellOrder, KernelOrder

router = APIRouter(
    prefix="/v1/sandboxes/{sandbox_id}/kernels", tags=["kernels"], route_class=StrictRoute
)

WaitS = Annotated[float, Query(ge=0, le=3600)]
After = Annotated[int, Query(ge=0)]

_SHORT_S = 1.0  # a cell that ends sooner is not worth watching its caller for
_PLAIN = KernelBody()  # what an empty body stands for


@router.post("", status_code=201, operation_id="start_kernel", responses=answers(Kernel, 201))
async def start_kernel(request: Request, sandbox_id: str, body: KernelBody = _PLAIN) -> Response:
    """Start a kernel; answered once it takes cells."""
    services, caller = here(request)
    order = KernelOrder(kernel_id=body.kernel_id or "", spec=body.spec, env=body.env, cwd=body.cwd)
    kernel = await waiting(
        request, lambda: services.kernels.start(sandbox_id, order, owner=caller.owner)
    )
    return render.answer(render_kernels.kernel(kernel), status=201)


@router.get("", operation_id="list_kernels", responses=answers(Kernels))
async def list_kernels(
    request: Request, sandbox_id: str, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """The kernels of the sandbox, newest first."""
    services, caller = here(request)
    kernels = await services.kernels.list(sandbox_id, owner=caller.owner)
    shown, next_cursor = page(
        enumerate(kernels),
        key=lambda numbered: (numbered[0], numbered[1].kernel_id),
        limit=limit,
        cursor=cursor,
    )
    told = [render_kernels.kernel(kernel) for _, kernel in shown]
    return render.answer({"kernels": told, "next_cursor": next_cursor})


@router.get("/{kernel_id}", operation_id="get_kernel", responses=answers(Kernel))
async def get_kernel(request: Request, sandbox_id: str, kernel_id: str) -> Response:
    """One kernel."""
    services, caller = here(request)
    kernel = await services.kernels.look(sandbox_id, kernel_id, owner=caller.owner)
    return render.answer(render_kernels.kernel(kernel))


@router.delete("/{kernel_id}", operation_id="shut_down_kernel", status_code=204)
async def shut_down_kernel(request: Request, sandbox_id: str, kernel_id: str) -> Response:
    """End a kernel and all that it started."""
    services, caller = here(request)
    await waiting(
        request, lambda: services.kernels.shut_down(sandbox_id, kernel_id, owner=caller.owner)
    )
    return Response(status_code=204)


@router.post("/{kernel_id}/execute", operation_id="execute_cell", responses=answers(Cell, 200, 202))
async def execute_cell(
    request: Request,
    sandbox_id: str,
    kernel_id: str,
    body: CellBody,
    wait_s: Annotated[float | None, Query(ge=0, le=86400)] = None,
) -> Response:
    """Run a cell; the same `cell_id` attaches: 200 when it ended, 202 while it runs (`detach`,
    after `wait_s`). With `Accept: application/x-ndjson` its events as they come.
    """
    services, caller = here(request)
    kernels, owner = services.kernels, caller.owner
    order = CellOrder(
        cell_id=body.cell_id or new_id("cel"),
        code=body.code,
        timeout_s=body.timeout_s,
        allow_stdin=body.allow_stdin,
        stop_on_error=body.stop_on_error,
        store_history=body.store_history,
    )
    cell = await kernels.submit(sandbox_id, kernel_id, order, owner=owner)
    if "application/x-ndjson" in request.headers.get("accept", "") and not body.detach:
        return _events(request, services, (sandbox_id, kernel_id, order.cell_id), after=0)
    look = partial(kernels.look_cell, sandbox_id, kernel_id, order.cell_id, owner=owner)
    first = 0.0 if body.detach else _SHORT_S if wait_s is None else min(wait_s, _SHORT_S)
    if first > 0:
        cell = await look(wait_s=first)
    if cell.outcome is None and not body.detach and wait_s != first:
        rest = math.inf if wait_s is None else wait_s - first
        cell = await waiting(request, lambda: look(wait_s=rest))
    return render.answer(render_kernels.cell(cell), status=202 if cell.outcome is None else 200)


@router.get("/{kernel_id}/cells/{cell_id}", operation_id="get_cell", responses=answers(Cell))
async def get_cell(
    request: Request, sandbox_id: str, kernel_id: str, cell_id: str, wait_s: WaitS = 0
) -> Response:
    """One cell; with `wait_s` once it ended, or that time has passed."""
    services, caller = here(request)
    cell = await waiting(
        request,
        lambda: services.kernels.look_cell(
            sandbox_id, kernel_id, cell_id, owner=caller.owner, wait_s=wait_s
        ),
    )
    return render.answer(render_kernels.cell(cell))


@router.get(
    "/{kernel_id}/cells/{cell_id}/events",
    operation_id="follow_cell",
    responses=raw("application/x-ndjson"),
    response_class=Response,
)
async def follow_cell(
    request: Request, sandbox_id: str, kernel_id: str, cell_id: str, after: After = 0
) -> Response:
    """A cell's events from the one after `after` on, live."""
    services, _ = here(request)
    return _events(request, services, (sandbox_id, kernel_id, cell_id), after=after)


def _events(
    request: Request, services: Services, cell: tuple[str, str, str], *, after: int
) -> Response:
    _, caller = here(request)

    async def lines() -> AsyncGenerator[tuple[int, bytes], None]:
        seq = after
        flow = services.kernels.events(*cell, owner=caller.owner, after=after)
        async with aclosing(flow) as events:
            async for event in events:
                if event is None:
                    yield seq, to_json({"seq": seq, "type": "keepalive"}) + b"\n"
                else:
                    seq = event["seq"]
                    yield seq, to_json(event, inf_nan_mode="null") + b"\n"
        ended = await services.kernels.look_cell(*cell, owner=caller.owner)
        whole = render_kernels.cell(ended)
        last = {"seq": seq + 1, "type": "ended", "cell": whole}
        yield seq + 1, to_json(last, inf_nan_mode="null") + b"\n"

    return ndjson(request, lines, request_id=request_id_of(request))


@router.post("/{kernel_id}/interrupt", operation_id="interrupt_kernel", responses=answers(Kernel))
async def interrupt_kernel(request: Request, sandbox_id: str, kernel_id: str) -> Response:
    """Interrupt what runs."""
    services, caller = here(request)
    kernel = await services.kernels.interrupt(sandbox_id, kernel_id, owner=caller.owner)
    return render.answer(render_kernels.kernel(kernel))


@router.post("/{kernel_id}/restart", operation_id="restart_kernel", responses=answers(Kernel))
async def restart_kernel(request: Request, sandbox_id: str, kernel_id: str) -> Response:
    """Start it anew; its variables are gone."""
    services, caller = here(request)
    kernel = await waiting(
        request, lambda: services.kernels.restart(sandbox_id, kernel_id, owner=caller.owner)
    )
    return render.answer(render_kernels.kernel(kernel))


@router.post("/{kernel_id}/input", operation_id="answer_input", responses=answers(Kernel))
async def answer_input(
    request: Request, sandbox_id: str, kernel_id: str, body: InputBody
) -> Response:
    """Answer the input that the running cell asks for."""
    services, caller = here(request)
    await services.kernels.answer(sandbox_id, kernel_id, body.text, owner=caller.owner)
    kernel = await services.kernels.look(sandbox_id, kernel_id, owner=caller.owner)
    return render.answer(render_kernels.kernel(kernel))


@router.post(
    "/{kernel_id}/complete", operation_id="complete_code", responses=raw("application/json")
)
async def complete_code(
    request: Request, sandbox_id: str, kernel_id: str, body: CodeBody
) -> Response:
    """What could come at the cursor, as the kernel says."""
    return await _asked(request, sandbox_id, kernel_id, "complete_request", body)


@router.post("/{kernel_id}/inspect", operation_id="inspect_code", responses=raw("application/json"))
async def inspect_code(
    request: Request, sandbox_id: str, kernel_id: str, body: CodeBody
) -> Response:
    """What is known of the name at the cursor, as the kernel says."""
    return await _asked(request, sandbox_id, kernel_id, "inspect_request", body)


async def _asked(
    request: Request, sandbox_id: str, kernel_id: str, kind: str, body: CodeBody
) -> Response:
    services, caller = here(request)
    cursor = len(body.code) if body.cursor is None else body.cursor
    content: dict[str, Any] = {"code": body.code, "cursor_pos": cursor}
    if kind == "inspect_request":
        content["detail_level"] = body.detail
    reply = await waiting(
        request,
        lambda: services.kernels.ask(sandbox_id, kernel_id, kind, content, owner=caller.owner),
    )
    return render.answer(reply)
