"""`ls`, `pools`, `logs`: what there is and what happened."""

from __future__ import annotations

import json
from argparse import Namespace
from datetime import UTC, datetime

from sandboxd.cli.client import with_client
from sandboxd.cli.faults import ExitCode
from sandboxd.cli.table import in_words, pairs, print_json, print_table
from sandboxd.clock import SystemClock
from sandboxd_client import AsyncSandboxd, SandboxInfo

_POOL_COLUMNS = ("template", "ready", "making", "leased", "disposing", "queued", "target", "max")
_COLUMNS = ("id", "template", "state", "age", "ends in", "run", "labels")


def ls(args: Namespace) -> int:
    """List sandboxes, newest first; only live ones unless a state is named."""

    async def verb(client: AsyncSandboxd) -> int:
        found = await client.sandboxes(run_id=args.run, labels=dict(args.label), state=args.state)
        if args.output == "json":
            print_json({"sandboxes": [dict(info.raw) for info in found]})
        elif args.quiet:
            print(*(info.id for info in found), sep="\n", end="\n" if found else "")
        else:
            now = SystemClock().now()
            print_table(_COLUMNS, [_row(info, now=now) for info in found])
        return ExitCode.OK

    return with_client(verb)


def pools(args: Namespace) -> int:
    """List the pools; what went wrong last in one stands below."""

    async def verb(client: AsyncSandboxd) -> int:
        found = await client.pools()
        if args.output == "json":
            print_json({"pools": [dict(pool.raw) for pool in found]})
            return ExitCode.OK
        rows = [[getattr(pool, column) for column in _POOL_COLUMNS] for pool in found]
        print_table(_POOL_COLUMNS, rows)
        for pool in found:
            if pool.last_error:
                print(f"{pool.template}: last error: {_error(pool.last_error)}")
        return ExitCode.OK

    return with_client(verb)


def logs(args: Namespace) -> int:
    """Say what happened to a sandbox, oldest first."""

    async def verb(client: AsyncSandboxd) -> int:
        async for entry in client.sandbox(args.id).logs():
            print(json.dumps(entry, ensure_ascii=False) if args.output == "json" else _line(entry))
        return ExitCode.OK

    return with_client(verb)


def _row(info: SandboxInfo, *, now: float) -> list[object]:
    age = None if info.created_at is None else now - info.created_at
    left = None if info.expires_at is None else info.expires_at - now
    if info.end is not None:
        left = None
    state = info.state if info.end is None else f"{info.state} ({info.end.reason})"
    kind = info.template or info.image
    return [info.id, kind, state, in_words(age), in_words(left), info.run_id, pairs(info.labels)]


def _line(entry: dict[str, object]) -> str:
    rest = dict(entry)
    at = rest.pop("at", None)
    when = (
        datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S") if isinstance(at, int | float) else ""
    )
    what = str(rest.pop("type", rest.pop("event", "")))
    facts = " ".join(f"{name}={json.dumps(value)}" for name, value in rest.items())
    return f"{when} {what} {facts}".strip()


def _error(error: object) -> str:
    if isinstance(error, dict):
        return f"{error.get('detail')} ({error.get('code')})"
    return str(error)
