"""The control plane: sandboxes made, looked at, listed, deleted, and the keys to their gateway."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sandboxd.api.audited import about
from sandboxd.api.orders import START_ID, lease
from sandboxd.api.render import answer, text_of
from sandboxd.api.services import Services, here
from sandboxd.api.strict import StrictRoute
from sandboxd.api.tokens import Grant
from sandboxd.compat.prime.bodies import BulkDeleteBody, CreateBody, StatusesBody
from sandboxd.compat.prime.pulls import image_builds
from sandboxd.compat.prime.shown import error_of, labels_of, sandbox, snapshot, status_of, when
from sandboxd.compat.prime.wishes import IMAGE, wish_of
from sandboxd.errors import SandboxdError
from sandboxd.leases.tenancy import Tenancy
from sandboxd.model.lease import Lease
from sandboxd.wire.codes import ErrorCode

DIALECT = "prime"
_TOKEN_S = 3600.0  # they ask for the next one by themselves

router = APIRouter(
    prefix="/api/v1/sandbox", route_class=StrictRoute, include_in_schema=False, tags=[DIALECT]
)


@router.post("", operation_id="prime_create")
async def create(request: Request, body: CreateBody) -> Response:
    """A sandbox, at once: PENDING where it has to wait for a box. The gateway's key comes with it,
    which saves its client a request.
    """
    services, _ = here(request)
    wish = wish_of(
        body, images=services.foreign_images.get(DIALECT, {}), templates=services.templates
    )
    tenancy, _ = await lease(request, wish)
    shown = await _shown(tenancy, services)
    return answer({**shown, "gatewayAuth": _auth(tenancy.lease.id, services)})


@router.get("", operation_id="prime_list")
async def list_sandboxes(
    request: Request,
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    per_page: Annotated[int, Query(ge=1, le=1000)] = 50,
    status: str | None = None,
    labels: Annotated[list[str] | None, Query()] = None,
    is_active: bool = False,
    team_id: str | None = None,
    user_id: str | None = None,
) -> Response:
    """Those that were made by this dialect, newest first."""
    services, caller = here(request)

    def wanted(found: Lease) -> bool:
        return (
            IMAGE in found.terms.labels
            and not (is_active and found.over)
            and set(labels or ()) <= set(labels_of(found))
        )

    tenancies = services.desk.book.select(owner=caller.owner, where=wanted)
    found = [t.shown() for t in tenancies if status in {None, status_of(t.shown())}]
    first = (page - 1) * per_page
    told = {
        "sandboxes": [sandbox(each) for each in found[first : first + per_page]],
        "total": len(found),
        "page": page,
        "perPage": per_page,
        "hasNext": first + per_page < len(found),
    }
    return answer(told)


@router.delete("", operation_id="prime_delete_many")
async def delete_many(request: Request, body: BulkDeleteBody) -> Response:
    """Delete by ids, or all that have the labels; what is not there is told, and stops nothing."""
    services, caller = here(request)
    found: dict[str, Tenancy] = {}
    failed: list[dict[str, str]] = []
    for sandbox_id in body.sandbox_ids or ():
        try:
            found[sandbox_id] = services.desk.find(sandbox_id, owner=caller.owner)
        except SandboxdError as error:
            failed.append({"sandbox_id": sandbox_id, "error": error.detail})
    if body.labels:
        wanted = set(body.labels)
        for tenancy in services.desk.book.select(
            owner=caller.owner, where=lambda each: wanted <= set(labels_of(each))
        ):
            found[tenancy.lease.id] = tenancy
    _, left = await services.desk.release_all(found.values(), owner=caller.owner)
    failed += [{"sandbox_id": each, "error": "it could not be ended"} for each in left]
    gone = [each for each in found if each not in left]
    about(request, sandbox_ids=gone, failed=left)
    text = f"{len(gone)} deleted, {len(failed)} failed"
    return answer({"succeeded": gone, "failed": failed, "message": text})


@router.post("/status:batchGet", operation_id="prime_statuses")
async def statuses(request: Request, body: StatusesBody) -> Response:
    """Where many are; each id is told once, as a status or as an error."""
    services, caller = here(request)
    found: list[Tenancy] = []
    errors: list[dict[str, str]] = []
    for sandbox_id in dict.fromkeys(body.sandbox_ids):
        try:
            found.append(services.desk.find(sandbox_id, owner=caller.owner))
        except SandboxdError as error:
            told = {"sandbox_id": sandbox_id, "code": "NOT_FOUND", "message": error.detail}
            errors.append(told)
    leases = [tenancy.shown() for tenancy in found]
    builds = await image_builds(leases, services)
    known = [snapshot(each, image_build=builds.get(each.terms.spec.image)) for each in leases]
    return answer({"statuses": known, "errors": errors})


@router.get("/{sandbox_id}", operation_id="prime_get")
async def get(request: Request, sandbox_id: str) -> Response:
    """One sandbox."""
    services, caller = here(request)
    return answer(await _shown(services.desk.find(sandbox_id, owner=caller.owner), services))


@router.delete("/{sandbox_id}", operation_id="prime_delete")
async def delete(request: Request, sandbox_id: str) -> Response:
    """Delete: success the first time and again."""
    services, caller = here(request)
    ended = await services.desk.release(sandbox_id, owner=caller.owner)
    return answer({"id": ended.id, "status": status_of(ended)})


@router.post("/{sandbox_id}/auth", operation_id="prime_auth")
async def auth(request: Request, sandbox_id: str) -> Response:
    """A key to the sandbox's gateway."""
    services, caller = here(request)
    services.desk.find(sandbox_id, owner=caller.owner)
    return answer(_auth(sandbox_id, services))


@router.get("/{sandbox_id}/error-context", operation_id="prime_error_context")
async def error_context(request: Request, sandbox_id: str) -> Response:
    """Why commands fail: their clients raise what this says."""
    services, caller = here(request)
    found = services.desk.find(sandbox_id, owner=caller.owner).shown()
    error_type, error_message = error_of(found)
    told = {"status": status_of(found), "errorType": error_type, "errorMessage": error_message}
    return answer(told)


@router.get("/{sandbox_id}/logs", operation_id="prime_logs")
async def logs(request: Request, sandbox_id: str) -> Response:
    """What the start command has written; without one, what happened to the sandbox."""
    services, caller = here(request)
    tenancy = services.desk.find(sandbox_id, owner=caller.owner)
    try:
        record = await services.commands.look(sandbox_id, START_ID, owner=caller.owner)
        text = text_of(record.stdout) + text_of(record.stderr)
    except SandboxdError as error:
        if error.code not in {
            ErrorCode.NOT_FOUND,
            ErrorCode.CONFLICT,
            ErrorCode.LEASE_ENDED,
            ErrorCode.SANDBOX_LOST,
        }:
            raise
        text = "".join(f"{when(entry['at'])} {_told(entry)}\n" for entry in tenancy.diary)
    return answer({"logs": text})


def _told(entry: dict[str, Any]) -> str:
    facts = [f"{name}={value}" for name, value in entry.items() if name not in {"at", "event"}]
    return " ".join([str(entry["event"]), *facts])


async def _shown(tenancy: Tenancy, services: Services) -> dict[str, Any]:
    found = tenancy.shown()
    builds = await image_builds([found], services)
    return sandbox(found, image_build=builds.get(found.terms.spec.image))


def _auth(sandbox_id: str, services: Services) -> dict[str, str]:
    """The gateway stands below the sandbox's own path, so that its key is a token of ours."""
    expires_at = services.clock.now() + _TOKEN_S
    grant = Grant(lease_id=sandbox_id, rights="use", expires_at=expires_at)
    return {
        "gateway_url": f"{services.base_url}/v1/sandboxes",
        "user_ns": sandbox_id,
        "job_id": DIALECT,
        "token": services.tokens.mint(grant),
        "expires_at": when(expires_at),
    }
