"""`cp`: files and folders between here and a sandbox."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from dataclasses import dataclass

from sandboxd.cli.client import with_client
from sandboxd.cli.faults import CliError, ExitCode
from sandboxd_client import AsyncSandboxd

# Longer than a drive's letter, so that C:\ is a path here.
_REMOTE = re.compile(r"(?P<id>[A-Za-z0-9][A-Za-z0-9._-]+):(?P<path>.+)\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Remote:
    """A path in a sandbox."""

    sandbox_id: str
    path: str


def copy(args: Namespace) -> int:
    """Copy in or out; `-` is standard input or output."""
    source, target = _place(args.source), _place(args.target)
    match source, target:
        case str(), Remote():
            return with_client(lambda client: _copy_in(client, source, target))
        case Remote(), str():
            return with_client(lambda client: _copy_out(client, source, target))
        case _:
            raise CliError(
                "one side must be ID:PATH and the other a path here", code=ExitCode.USAGE
            )


def _place(text: str) -> str | Remote:
    match = _REMOTE.match(text)
    # A path here that has a colon can be written ./a:b.
    return Remote(match["id"], match["path"]) if match else text


async def _copy_in(client: AsyncSandboxd, source: str, target: Remote) -> int:
    files = client.sandbox(target.sandbox_id).files
    if source == "-":
        await files.write(target.path, sys.stdin.buffer)
    else:
        await files.upload(source, target.path)
    return ExitCode.OK


async def _copy_out(client: AsyncSandboxd, source: Remote, target: str) -> int:
    files = client.sandbox(source.sandbox_id).files
    if target != "-":
        await files.download(source.path, target)
        return ExitCode.OK
    async for chunk in files.read_chunks(source.path):
        sys.stdout.buffer.write(chunk)
    return ExitCode.OK
