"""`images`, `prefetch`: what sandboxes are made of, and having it ready."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TextIO

import anyio

from sandboxd.cli.client import with_client
from sandboxd.cli.faults import ExitCode, say
from sandboxd.cli.table import in_words, print_json, print_table
from sandboxd.clock import SystemClock
from sandboxd_client import AsyncSandboxd, ImageInfo, SandboxdError

_COLUMNS = ("image", "state", "size", "in use", "last used", "digest")
_DIGEST_CHARS = len("sha256:") + 12
_LOOK_EVERY_S = 1.0
_LINE_CHARS = 79


def images(args: Namespace) -> int:
    """List the images; why one failed to come stands below."""

    async def verb(client: AsyncSandboxd) -> int:
        _show(await client.images(), as_json=args.output == "json")
        return ExitCode.OK

    return with_client(verb)


def prefetch(args: Namespace) -> int:
    """Have images ready; 1 if one failed to come, or is still coming after `--timeout`."""

    async def verb(client: AsyncSandboxd) -> int:
        async with anyio.create_task_group() as tasks:
            if sys.stderr.isatty():
                tasks.start_soon(_tell_progress, client, sys.stderr, name="progress")
            try:
                found = await client.prefetch(args.images, timeout_s=args.timeout)
            finally:
                tasks.cancel_scope.cancel()
        _show(found, as_json=args.output == "json")
        return ExitCode.OK if all(i.state == "present" for i in found) else ExitCode.FAILED

    return with_client(verb)


def _show(found: Sequence[ImageInfo], *, as_json: bool) -> None:
    if as_json:
        print_json({"images": [dict(image.raw) for image in found]})
        return
    now = SystemClock().now()
    print_table(_COLUMNS, [_row(image, now=now) for image in found])
    for image in found:
        if image.error:
            say(image.error)


def _row(image: ImageInfo, *, now: float) -> list[object]:
    used = None if image.used_at is None else now - image.used_at
    size = None if image.size_bytes is None else f"{image.size_bytes / (1 << 20):.0f} MiB"
    digest = image.digest and image.digest[:_DIGEST_CHARS]
    return [image.reference, image.state, size, image.in_use, in_words(used), digest]


async def _tell_progress(client: AsyncSandboxd, terminal: TextIO) -> None:
    """One line that is written over, and gone at the end."""
    try:
        while True:
            await anyio.sleep(_LOOK_EVERY_S)
            terminal.write(f"\r\x1b[K{_line(await client.images())}")
            terminal.flush()
    except SandboxdError:
        pass  # the call that waits says what is wrong
    finally:
        terminal.write("\r\x1b[K")
        terminal.flush()


def _line(found: Sequence[ImageInfo]) -> str:
    coming = [f"{image.reference} {image.progress}" for image in found if image.state == "pulling"]
    text = f"{len(coming)} coming: {'; '.join(coming)}" if coming else "waiting"
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_LINE_CHARS])
