"""`lease` and `release`: take a sandbox, give it back."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from sandboxd.cli.client import sentence, with_client
from sandboxd.cli.faults import CliError, ExitCode, say
from sandboxd.cli.table import print_json
from sandboxd_client import AsyncSandboxd, LeaseOptions, SandboxdError


def lease(args: Namespace) -> int:
    """Lease a sandbox and print its id. It stays leased when the program ends."""
    given: dict[str, object] = {
        "image": args.image,
        "env": dict(args.env),
        "labels": dict(args.label),
        "workdir": args.workdir,
        "network": args.network,
        "forwards": dict(args.forward),
        "timeout_s": args.timeout,
        "grading_s": args.grading,
        "idle_timeout_s": args.idle_timeout,
        "wait_timeout_s": args.wait,
        "run_id": args.run,
    }
    options: LeaseOptions = {  # type: ignore[assignment]
        name: value for name, value in given.items() if value is not None and value != {}
    }

    async def verb(client: AsyncSandboxd) -> int:
        await (
            client.version()
        )  # a lease waits for its daemon, a person for a wrong address need not
        sandbox = await client.lease(args.template, **options)
        if args.output == "json":
            print_json(dict(sandbox.granted.raw if sandbox.granted else {}))
        else:
            print(sandbox.id)
        return ExitCode.OK

    return with_client(verb)


def release(args: Namespace) -> int:
    """Release by id or by run, whose name is free again then. Goes on after a failure; 1 if any
    failed.
    """
    if bool(args.ids) == bool(args.run):
        raise CliError("give sandbox ids or --run RUN", code=ExitCode.USAGE)

    async def verb(client: AsyncSandboxd) -> int:
        released: list[str] | int
        failed: list[Any] | int
        if args.run:
            told = await client.run(args.run).end()
            released, failed = told.released, told.failed
        else:
            released, failed = await _release_each(client, args.ids)
        if args.output == "json":
            print_json({"released": released, "failed": failed})
        elif args.run:
            print(f"released {_count(released)} of run {args.run}, failed {_count(failed)}")
        return ExitCode.FAILED if failed else ExitCode.OK

    return with_client(verb)


def _count(ids: list[Any] | int) -> int:
    return ids if isinstance(ids, int) else len(ids)


async def _release_each(client: AsyncSandboxd, ids: list[str]) -> tuple[list[str], list[str]]:
    released, failed = [], []
    for sandbox_id in ids:
        try:
            await client.sandbox(sandbox_id).release()
            released.append(sandbox_id)
        except SandboxdError as error:
            say(f"{sandbox_id}: {sentence(error)}")
            failed.append(sandbox_id)
            if error.code == "api_unreachable":
                raise
    return released, failed
