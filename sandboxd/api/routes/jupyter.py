"""Jupyter's own protocol, as clients of a Kernel Gateway speak it, below one sandbox.

Query parameters that we do not know are let pass: these clients send some of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, WebSocket
from fastapi.routing import APIRoute
from starlette.responses import Response

from sandboxd import __version__
from sandboxd.api import render, render_jupyter
from sandboxd.api.auth import Principal
from sandboxd.api.problems import problem
from sandboxd.api.schemas.jupyter import JupyterKernelBody
from sandboxd.api.services import Services, here, request_id_of, services_of
from sandboxd.api.shapes.jupyter import (
    JupyterKernel,
    JupyterKernels,
    JupyterSpec,
    JupyterSpecs,
    JupyterVersion,
)
from sandboxd.api.shapes.parts import Responses, answers
from sandboxd.api.sockets.channels import ChannelsSession
from sandboxd.api.streams import waiting
from sandboxd.errors import SandboxdError
from sandboxd.kernels.jupyter.frames import V1
from sandboxd.model.ids import new_kernel_id
from sandboxd.model.kernel import KernelOrder
from sandboxd.wire.codes import ErrorCode


class _Route(APIRoute):
    """Its problems have the members that Jupyter's clients show to people."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def told(request: Request) -> Response:
            try:
                return await answer(request)
            except SandboxdError as error:
                request.scope["state"]["code"] = error.code
                return problem(
                    error,
                    request_id=request_id_of(request),
                    metrics=services_of(request).metrics,
                    more={"message": error.detail, "reason": error.code},
                )

        return told


router = APIRouter(
    prefix="/v1/sandboxes/{sandbox_id}/jupyter/api", tags=["jupyter"], route_class=_Route
)

_PLAIN = JupyterKernelBody()  # what an empty body stands for
_DONE: Responses = {204: {"description": "Done."}}


@router.get("", operation_id="jupyter_version", responses=answers(JupyterVersion))
async def jupyter_version(request: Request, sandbox_id: str) -> Response:
    """Whose answers these are. With `…/jupyter` as the URL of a gateway, the rest follows."""
    services, caller = here(request)
    services.desk.look_at(sandbox_id, owner=caller.owner)
    return render.answer({"version": f"sandboxd {__version__}"})


@router.get("/kernelspecs", operation_id="jupyter_kernelspecs", responses=answers(JupyterSpecs))
async def jupyter_kernelspecs(request: Request, sandbox_id: str) -> Response:
    """The kernelspecs of the sandbox's image."""
    services, caller = here(request)
    specs = await services.kernels.specs(sandbox_id, owner=caller.owner)
    return render.answer(render_jupyter.specs(specs))


@router.get(
    "/kernelspecs/{name}", operation_id="jupyter_kernelspec", responses=answers(JupyterSpec)
)
async def jupyter_kernelspec(request: Request, sandbox_id: str, name: str) -> Response:
    """One kernelspec."""
    services, caller = here(request)
    for spec in await services.kernels.specs(sandbox_id, owner=caller.owner):
        if spec.name == name:
            return render.answer(render_jupyter.spec(spec))
    raise SandboxdError(ErrorCode.NOT_FOUND, f"there is no kernelspec {name[:64]!r} in the sandbox")


@router.get("/kernels", operation_id="jupyter_kernels", responses=answers(JupyterKernels))
async def jupyter_kernels(request: Request, sandbox_id: str) -> Response:
    """All kernels of the sandbox, however they were started."""
    services, caller = here(request)
    kernels = await services.kernels.list(sandbox_id, owner=caller.owner)
    return render.answer([render_jupyter.kernel(kernel) for kernel in kernels])


@router.post(
    "/kernels",
    status_code=201,
    operation_id="jupyter_start_kernel",
    responses=answers(JupyterKernel, 201),
)
async def jupyter_start_kernel(
    request: Request, sandbox_id: str, body: JupyterKernelBody = _PLAIN
) -> Response:
    """Start a kernel; answered once it takes requests."""
    services, caller = here(request)
    order = KernelOrder(kernel_id=new_kernel_id(), spec=body.name, env=body.env)
    kernel = await waiting(
        request, lambda: services.kernels.start(sandbox_id, order, owner=caller.owner)
    )
    return render.answer(render_jupyter.kernel(kernel), status=201)


@router.get("/kernels/{kernel_id}", operation_id="jupyter_kernel", responses=answers(JupyterKernel))
async def jupyter_kernel(request: Request, sandbox_id: str, kernel_id: str) -> Response:
    """One kernel."""
    services, caller = here(request)
    kernel = await services.kernels.look(sandbox_id, kernel_id, owner=caller.owner)
    return render.answer(render_jupyter.kernel(kernel))


@router.delete(
    "/kernels/{kernel_id}",
    status_code=204,
    operation_id="jupyter_shut_down_kernel",
    response_class=Response,
    responses=_DONE,
)
async def jupyter_shut_down_kernel(request: Request, sandbox_id: str, kernel_id: str) -> Response:
    """Shut it down."""
    services, caller = here(request)
    await services.kernels.shut_down(sandbox_id, kernel_id, owner=caller.owner)
    return Response(status_code=204)


@router.post(
    "/kernels/{kernel_id}/interrupt",
    status_code=204,
    operation_id="jupyter_interrupt_kernel",
    response_class=Response,
    responses=_DONE,
)
async def jupyter_interrupt_kernel(request: Request, sandbox_id: str, kernel_id: str) -> Response:
    """Interrupt what runs."""
    services, caller = here(request)
    await services.kernels.interrupt(sandbox_id, kernel_id, owner=caller.owner)
    return Response(status_code=204)


@router.post(
    "/kernels/{kernel_id}/restart",
    operation_id="jupyter_restart_kernel",
    responses=answers(JupyterKernel),
)
async def jupyter_restart_kernel(request: Request, sandbox_id: str, kernel_id: str) -> Response:
    """Start it anew; its variables are gone."""
    services, caller = here(request)
    kernel = await waiting(
        request, lambda: services.kernels.restart(sandbox_id, kernel_id, owner=caller.owner)
    )
    return render.answer(render_jupyter.kernel(kernel))


@router.get(
    "/kernels/{kernel_id}/channels",
    operation_id="jupyter_channels",
    response_class=Response,
    responses={101: {"description": "A WebSocket; `docs/notebooks.md` has its frames."}},
)
async def jupyter_channels_without_upgrade(
    sandbox_id: str, kernel_id: str, session_id: str = "", heard: str | None = None
) -> Response:
    """A WebSocket: the kernel's shell, iopub, stdin and control.

    `session_id`: a client that comes back under it hears what it missed. `heard`: the `msg_id` of
    the last message that it heard, or nothing: then it hears what it missed after a restart of the
    daemon too, and a request that it sends again, under its `msg_id`, does not run twice.
    """
    raise SandboxdError(
        ErrorCode.BAD_REQUEST, "this is a WebSocket: send `Upgrade: websocket`", status=426
    )


@router.websocket("/kernels/{kernel_id}/channels")
async def jupyter_channels(
    socket: WebSocket,
    sandbox_id: str,
    kernel_id: str,
    session_id: str = "",
    heard: str | None = None,
) -> None:
    """See `jupyter_channels_without_upgrade`."""
    services: Services = socket.app.state.services
    caller: Principal = socket.scope["state"]["principal"]
    if caller.rights == "read":
        raise SandboxdError(
            ErrorCode.FORBIDDEN, "this token may only read, and a WebSocket goes both ways"
        )
    async with services.kernels.channels(
        sandbox_id,
        kernel_id,
        owner=caller.owner,
        session=session_id[:128],
        heard=None if heard is None else heard[:256],
    ) as channels:
        v1 = V1 if V1 in socket.scope.get("subprotocols", ()) else None
        await socket.accept(subprotocol=v1)
        await ChannelsSession(socket, services, channels, v1=v1 is not None).run()
