"""Files inside a sandbox, streamed through."""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from sandboxd.api import render
from sandboxd.api.paging import Cursor, Limit
from sandboxd.api.schemas.files import MkdirBody, MoveBody
from sandboxd.api.services import here
from sandboxd.api.shapes.files import File, Files, Unpacked
from sandboxd.api.shapes.parts import answers, raw, takes
from sandboxd.api.streams import Emit, Flow, StartBody
from sandboxd.api.strict import StrictRoute
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

router = APIRouter(
    prefix="/v1/sandboxes/{sandbox_id}/files", tags=["files"], route_class=StrictRoute
)


async def _path(path: str = "", path_b64: str = "") -> str | bytes:
    """The path asked for, as text, or base64 for names that are not UTF-8."""
    if path_b64:
        try:
            return b64decode(path_b64, validate=True)
        except ValueError:
            raise SandboxdError(ErrorCode.BAD_REQUEST, "path_b64: is not base64") from None
    if not path:
        raise SandboxdError(
            ErrorCode.BAD_REQUEST, "path: name the file, absolute or from the workdir"
        )
    if "\0" in path:
        raise SandboxdError(ErrorCode.BAD_REQUEST, "path: must not contain a NUL character")
    return path


async def _mode(mode: str | None = None) -> int | None:
    """Permission bits in octal."""
    if mode is None:
        return None
    try:
        number = int(mode, 8)
    except ValueError:
        number = -1
    if not 0 <= number <= 0o7777:
        raise SandboxdError(ErrorCode.BAD_REQUEST, "mode: give permission bits in octal, like 644")
    return number


PathHere = Annotated[str | bytes, Depends(_path)]
User = Annotated[str, Query(max_length=256, pattern=r"^[^\x00]*$")]


@router.get(
    "", operation_id="read_file", responses=raw("application/octet-stream"), response_class=Response
)
async def read_file(
    request: Request,
    sandbox_id: str,
    path: PathHere,
    offset: Annotated[int, Query(ge=0, le=1 << 62)] = 0,
    limit: Annotated[int | None, Query(ge=0, le=1 << 62)] = None,
    user: User = "",
) -> Response:
    """The bytes of a file, or a part of them."""
    services, caller = here(request)

    async def source(start: StartBody, emit: Emit) -> None:
        reading = services.files.read(
            sandbox_id, path, owner=caller.owner, offset=offset, limit=limit, user=user
        )
        async with reading as body:
            headers = {"Content-Type": "application/octet-stream"}
            headers |= {"Content-Length": str(body.size), "X-File-Size": str(body.total_size)}
            await start(200, headers)
            async for piece in body.chunks():
                await emit(piece)

    return Flow(source)


@router.put(
    "",
    operation_id="write_file",
    openapi_extra=takes("application/octet-stream"),
    responses=answers(File, 200, 201),
)
async def write_file(
    request: Request,
    sandbox_id: str,
    path: PathHere,
    mode: Annotated[int | None, Depends(_mode)],
    user: User = "",
) -> Response:
    """Write a whole file, atomically: 201 if it is new, 200 if it was there."""
    services, caller = here(request)
    info, new = await services.files.write(
        sandbox_id,
        path,
        _pieces(request),
        owner=caller.owner,
        size=_length(request),
        mode=mode,
        user=user,
    )
    return render.answer(render.file(info), status=201 if new else 200)


@router.delete("", status_code=204, operation_id="delete_file")
async def delete_file(
    request: Request,
    sandbox_id: str,
    path: PathHere,
    recursive: bool = False,
    user: User = "",
) -> Response:
    """Remove a file or an empty directory, or with `recursive` a whole tree."""
    services, caller = here(request)
    await services.files.delete(
        sandbox_id, path, owner=caller.owner, recursive=recursive, user=user
    )
    return Response(status_code=204)


@router.get("/stat", operation_id="stat_file", responses=answers(File))
async def stat_file(
    request: Request,
    sandbox_id: str,
    path: PathHere,
    follow: bool = True,
    user: User = "",
) -> Response:
    """What stands at a path; with `follow=false` of a link itself."""
    services, caller = here(request)
    info = await services.files.stat(sandbox_id, path, owner=caller.owner, follow=follow, user=user)
    return render.answer(render.file(info))


@router.get("/list", operation_id="list_files", responses=answers(Files))
async def list_files(
    request: Request,
    sandbox_id: str,
    path: PathHere,
    recursive: bool = False,
    user: User = "",
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """What is in a directory, in the order of names; with `recursive` the whole tree, each
    directory before what is in it.
    """
    services, caller = here(request)
    found = await services.files.list(
        sandbox_id,
        path,
        owner=caller.owner,
        recursive=recursive,
        user=user,
        limit=limit + 1,  # one more tells whether there is more
        after=_place(cursor),
    )
    shown, more = found[:limit], len(found) > limit
    next_cursor = urlsafe_b64encode(shown[-1].after or b"").decode() if more else None
    files = [render.file(info) for info in shown]
    return render.answer({"files": files, "next_cursor": next_cursor})


def _place(cursor: str | None) -> bytes:
    try:
        return b64decode(cursor or "", altchars=b"-_", validate=True)
    except ValueError:
        raise SandboxdError(
            ErrorCode.BAD_REQUEST, "cursor: give a next_cursor of this list, unchanged"
        ) from None


@router.post("/mkdir", status_code=201, operation_id="make_directory", responses=answers(File, 201))
async def make_directory(
    request: Request,
    sandbox_id: str,
    body: MkdirBody,
) -> Response:
    """Make a directory, with its parents unless told otherwise."""
    services, caller = here(request)
    info = await services.files.mkdir(
        sandbox_id,
        body.path,
        owner=caller.owner,
        mode=body.mode,
        parents=body.parents,
        user=body.user,
    )
    return render.answer(render.file(info), status=201)


@router.post("/move", operation_id="move_file", responses=answers(File))
async def move_file(
    request: Request,
    sandbox_id: str,
    body: MoveBody,
) -> Response:
    """Rename a file or directory."""
    services, caller = here(request)
    info = await services.files.move(
        sandbox_id,
        body.source,
        body.to,
        owner=caller.owner,
        overwrite=body.overwrite,
        user=body.user,
    )
    return render.answer(render.file(info))


@router.get(
    "/archive",
    operation_id="pack_files",
    responses=raw("application/x-tar"),
    response_class=Response,
)
async def pack_files(
    request: Request, sandbox_id: str, path: PathHere, user: User = ""
) -> Response:
    """A directory or file as a tar stream."""
    services, caller = here(request)

    async def source(start: StartBody, emit: Emit) -> None:
        async with (
            services.files.open(sandbox_id, owner=caller.owner) as files,
            files.pack(path, user=user) as pieces,
        ):
            await start(200, {"Content-Type": "application/x-tar"})
            async for piece in pieces:
                await emit(piece)

    return Flow(source)


@router.put(
    "/archive",
    operation_id="unpack_files",
    openapi_extra=takes("application/octet-stream"),
    responses=answers(Unpacked),
)
async def unpack_files(
    request: Request,
    sandbox_id: str,
    path: PathHere,
    user: User = "",
) -> Response:
    """Write what a tar holds below `path`; members and links that leave it are refused."""
    services, caller = here(request)
    unpacked = await services.files.unpack(
        sandbox_id,
        path,
        _pieces(request),
        owner=caller.owner,
        size=_length(request),
        gzip=request.headers.get("content-encoding", "") == "gzip",
        user=user,
    )
    return render.answer({"files": unpacked.files, "bytes": unpacked.bytes})


def _length(request: Request) -> int | None:
    text = request.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() else None


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    async for piece in request.stream():
        if piece:
            yield piece
