"""`sweep`: remove what is ours and orphaned, from a state directory that no daemon holds.

A daemon that runs sweeps by itself. Never touches another installation's boxes.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace

import anyio

from sandboxd.backends.protocol import Backend, OwnedBox
from sandboxd.cli.faults import CliError, ExitCode, say
from sandboxd.cli.serve import read_settings
from sandboxd.cli.table import print_json
from sandboxd.clock import SystemClock
from sandboxd.daemon import open_backend
from sandboxd.errors import SandboxdError
from sandboxd.leases.sqlite_store import open_sqlite_store
from sandboxd.leases.store import LeaseStore
from sandboxd.model.lease import End, Lease, LeaseState
from sandboxd.settings import Settings
from sandboxd.state_dir import StateDir, hold_state_dir
from sandboxd.telemetry.metrics import Metrics
from sandboxd.wire.codes import END_VERDICTS, EndReason

_DISPOSE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A box to remove, and why."""

    box: OwnedBox
    why: str


def sweep(args: Namespace) -> int:
    """Remove it, or only say what would be. 1 if something could not be removed."""
    settings = read_settings(args)
    if not settings.state_dir.is_dir():
        raise CliError(f"{settings.state_dir}: there is no such state folder; give --state-dir")
    with hold_state_dir(settings.state_dir) as state_dir:
        found, failed = anyio.run(_sweep, settings, state_dir, args.all, args.dry_run)
    if args.output == "json":
        boxes = [{"box_id": one.box.box_id, "why": one.why} for one in found]
        print_json({"dry_run": args.dry_run, "boxes": boxes, "failed": failed})
    else:
        for one in found:
            print(f"{'would remove' if args.dry_run else 'removed'} {one.box.box_id}: {one.why}")
        print(f"{len(found)} found, {len(failed)} could not be removed")
    return ExitCode.FAILED if failed else ExitCode.OK


async def _sweep(
    settings: Settings,
    state_dir: StateDir,
    everything: bool,  # noqa: FBT001 - anyio.run takes no keywords
    dry_run: bool,  # noqa: FBT001
) -> tuple[list[Found], list[str]]:
    async with (
        open_backend(settings, state_dir) as backend,
        open_sqlite_store(state_dir.store, Metrics()) as store,
    ):
        leases = await store.load()
        found = list(_orphans(await backend.list_owned(), leases, everything=everything))
        if dry_run:
            return found, []
        if everything:
            await _end_leases(store, leases)
        return found, await _remove(backend, found)


def _orphans(
    boxes: Sequence[OwnedBox], leases: Sequence[Lease], *, everything: bool
) -> Sequence[Found]:
    """Boxes that nobody can use any more; with `everything` leased and warm ones too."""
    holders = {lease.box.box_id: lease for lease in leases if lease.box is not None}
    found = []
    for box in boxes:
        lease = holders.get(box.box_id)
        if lease is not None and lease.over:
            found.append(Found(box=box, why=f"its lease {lease.id} has ended"))
        elif box.ref is None:
            found.append(Found(box=box, why="what a make that never finished left"))
        elif not box.alive:
            found.append(Found(box=box, why="it is dead"))
        elif everything:
            why = "warm stock" if lease is None else f"leased as {lease.id}"
            found.append(Found(box=box, why=why))
    return found


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


async def _remove(backend: Backend, found: Sequence[Found]) -> list[str]:
    """Remove each; returns the ids of those that could not be."""
    failed = []
    for one in found:
        try:
            with anyio.fail_after(_DISPOSE_S):
                if one.box.ref is None:
                    await backend.dispose_remains(one.box.box_id)
                else:
                    await backend.dispose(one.box.ref)
        except SandboxdError as error:
            say(f"{one.box.box_id}: {error.detail}")
            failed.append(one.box.box_id)
        except TimeoutError:
            say(f"{one.box.box_id}: not gone within {_DISPOSE_S:g} s")
            failed.append(one.box.box_id)
    return failed
