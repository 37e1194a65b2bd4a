"""`sweep`: remove what is ours and orphaned, never another installation's.

Asks the daemon that holds the state directory; where none does, takes its lock and does it here.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from urllib.request import Request, urlopen

import anyio

from sandboxd.backend_choice import open_backend
from sandboxd.backends.protocol import Backend, OwnedBox
from sandboxd.cli.faults import CliError, ExitCode, say
from sandboxd.cli.serve import read_settings
from sandboxd.cli.table import print_json
from sandboxd.clock import SystemClock
from sandboxd.errors import SandboxdError
from sandboxd.leases.sqlite_store import open_sqlite_store
from sandboxd.leases.store import LeaseStore
from sandboxd.model.lease import End, Lease, LeaseState
from sandboxd.settings import Settings
from sandboxd.state_dir import StateDir, hold_state_dir, read_operator_key
from sandboxd.telemetry.metrics import Metrics
from sandboxd.wire.codes import END_VERDICTS, EndReason, ErrorCode

_DISPOSE_S = 30.0
_AT_ONCE = 16
_ALL_S = 300.0  # for a daemon to end everything


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A box to remove, and why."""

    box_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What was found, and how many of it could not be removed."""

    boxes: tuple[Found, ...]
    left: int


def sweep(args: Namespace) -> int:
    """Remove it, or only say what would be. 1 if something could not be removed."""
    settings = read_settings(args)
    if args.stop_deployment:
        from sandboxd.cli.deployment import stop_deployment

        stop_deployment(settings, args.stop_deployment)
    elif not settings.state_dir.is_dir():
        raise CliError(f"{settings.state_dir}: there is no such state folder; give --state-dir")
    try:
        with hold_state_dir(settings.state_dir, installation=settings.installation) as state_dir:
            swept = anyio.run(_sweep, settings, state_dir, args.all, args.dry_run)
    except SandboxdError as error:
        if error.code is not ErrorCode.CONFLICT:
            raise
        url = str(error.details.get("url", ""))
        swept = _ask_daemon(url, settings, everything=args.all, dry_run=args.dry_run)
    if args.output == "json":
        print_json({"dry_run": args.dry_run, **asdict(swept)})
    else:
        for found in swept.boxes:
            print(f"{'would remove' if args.dry_run else 'removed'} {found.box_id}: {found.why}")
        print(f"{len(swept.boxes)} found, {swept.left} could not be removed")
    return ExitCode.FAILED if swept.left else ExitCode.OK


def _ask_daemon(url: str, settings: Settings, *, everything: bool, dry_run: bool) -> Swept:
    """Have the daemon that holds the state directory do it."""
    if not url:
        raise CliError(f"the daemon that holds {settings.state_dir} is starting; try again")
    request = Request(  # noqa: S310 - an address that our own daemon wrote down
        f"{url}/v1/sweep",
        data=json.dumps({"all": everything, "dry_run": dry_run}).encode(),
        headers={
            "Content-Type": "application/json",
            "Authorization": f"Bearer {read_operator_key(settings.state_dir)}",
        },
    )
    try:
        with urlopen(request, timeout=_ALL_S) as answer:  # noqa: S310
            told = json.load(answer)
    except (OSError, ValueError) as error:
        text = f"a daemon holds {settings.state_dir} and does not answer at {url} ({error})"
        raise CliError(f"{text}; see its log") from error
    why = "all was to go" if everything else "nobody holds it"
    boxes = tuple(Found(box_id=box_id, why=why) for box_id in told["boxes"])
    return Swept(boxes=boxes, left=int(told["left"]))


async def _sweep(
    settings: Settings,
    state_dir: StateDir,
    everything: bool,  # noqa: FBT001 - anyio.run takes no keywords
    dry_run: bool,  # noqa: FBT001
) -> Swept:
    """Do it ourselves, as no daemon holds the state directory."""
    async with (
        open_backend(settings, state_dir) as backend,
        open_sqlite_store(state_dir.store, Metrics()) as store,
    ):
        leases = await store.load()
        holders = {lease.box.box_id: lease for lease in leases if lease.box is not None}
        doomed: dict[str, tuple[OwnedBox, str]] = {}
        for box in await backend.list_owned():
            why = _why_removed(box, holders.get(box.box_id), everything=everything)
            if why is not None:
                doomed[box.box_id] = (box, why)
        left = 0
        if not dry_run:
            if everything:
                await _end_leases(store, leases)
            left = await _remove(backend, [box for box, _ in doomed.values()])
    found = tuple(Found(box_id=box_id, why=why) for box_id, (_, why) in doomed.items())
    return Swept(boxes=found, left=left)


def _why_removed(box: OwnedBox, lease: Lease | None, *, everything: bool) -> str | None:
    """Why nobody can use a box any more, None if somebody might."""
    if lease is not None and lease.over:
        return f"its lease {lease.id} has ended"
    if box.ref is None:
        return "what a make that never finished left"
    if not box.alive:
        return "it is dead"
    if lease is None and box.lease_id:
        return f"it is noted as that of {box.lease_id}, which the store does not know"
    if everything:
        return "warm stock" if lease is None else f"leased as {lease.id}"
    return None


async def _end_leases(store: LeaseStore, leases: Sequence[Lease]) -> None:
    """On disk before any box goes, so that no crash in between lets one look merely lost."""
    verdict = END_VERDICTS[EndReason.SHUTDOWN]
    end = End(
        reason=EndReason.SHUTDOWN,
        code=verdict.code,
        fault=verdict.fault,
        mask=verdict.mask,
        detail="swept by the operator",
        at=SystemClock().now(),
    )
    for lease in leases:
        if not lease.over:
            await store.put(replace(lease, state=LeaseState.ENDING, end=end))


async def _remove(backend: Backend, boxes: Sequence[OwnedBox]) -> int:
    """Remove all, some at a time; returns how many could not be."""
    places = anyio.Semaphore(_AT_ONCE)
    kept: list[OwnedBox] = []

    async def remove(box: OwnedBox) -> None:
        async with places:
            if why := await _dispose(backend, box):
                say(f"{box.box_id}: {why}")
                kept.append(box)

    async with anyio.create_task_group() as tasks:
        for box in boxes:
            tasks.start_soon(remove, box, name=f"remove {box.box_id}")
    return len(kept)


async def _dispose(backend: Backend, box: OwnedBox) -> str:
    """Why it could not be removed; empty if it was."""
    try:
        with anyio.fail_after(_DISPOSE_S):
            if box.ref is None:
                await backend.dispose_remains(box.box_id)
            else:
                await backend.dispose(box.ref)
    except SandboxdError as error:
        return error.detail
    except TimeoutError:
        return "not gone in time"
    return ""
