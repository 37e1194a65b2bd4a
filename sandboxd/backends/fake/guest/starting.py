"""Which program an argv names, and why it cannot be started. Runs it, knows no program."""

from __future__ import annotations

from dataclasses import replace

from sandboxd.backends.fake.guest.process import Process, Program
from sandboxd.backends.fake.guest.refusals import Refusal
from sandboxd.backends.fake.guest.tree import Directory

MAX_ARGUMENT_BYTES = 131072  # as Linux has it, the final NUL included
_BIN = ("/bin/", "/usr/bin/", "/usr/local/bin/")


class CannotStart(Exception):
    """reason: of the protocol's set. from_inside: for what programs here took away."""

    def __init__(self, reason: str, detail: str, *, from_inside: bool = False) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.from_inside = from_inside


async def start(process: Process) -> int:
    """Run the program that argv names, to its end. Raises CannotStart and Died."""
    return await find(process)(process)


def find(process: Process) -> Program:
    """The program that argv names. Raises CannotStart."""
    name = process.argv[0]
    texts = [*process.argv, *(f"{k}={v}" for k, v in process.env.items())]
    if any(len(text.encode("utf-8", "surrogateescape")) >= MAX_ARGUMENT_BYTES for text in texts):
        raise CannotStart("too_long", f"an argument of {name} is too long")
    plain = next((name[len(b) :] for b in _BIN if name.startswith(b)), name)
    if plain in process.programs:
        return process.programs[plain]
    if "/" not in name:
        raise CannotStart("not_found", f"{name}: not found")
    return _from_file(process)


def _from_file(process: Process) -> Program:
    name = process.argv[0]
    try:
        node = process.files.node(process.path(name))
    except Refusal:
        raise CannotStart("not_found", f"{name}: not found") from None
    if isinstance(node, Directory) or not node.mode & 0o111:
        raise CannotStart("not_executable", f"{name}: permission denied")

    async def script(called: Process) -> int:
        argv = ("sh", called.path(name).decode("utf-8", "surrogateescape"), *called.argv[1:])
        return await called.programs["sh"](replace(called, argv=argv))

    return script
