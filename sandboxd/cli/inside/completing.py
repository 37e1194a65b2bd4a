"""Tab completion by the kernel, where the terminal's own library has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sandboxd_client import Kernel, SandboxdError

_MOST = 200
_INDENT = " " * 4


def offer_completion(kernel: Kernel, lines: list[str]) -> None:
    """Have Tab ask the kernel. lines: what of the cell was typed before, at any time."""
    try:
        import readline
    except ImportError:  # not everywhere
        return

    found: list[str] = []

    def complete(_: str, state: int) -> str | None:
        if state == 0:
            line, begin, end = (
                readline.get_line_buffer(),
                readline.get_begidx(),
                readline.get_endidx(),
            )
            if line[:end].strip():
                found[:] = matches_of(kernel, lines, line, begin=begin, end=end)
            else:
                found[:] = [_INDENT]
        return found[state] if state < len(found) else None

    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")


@contextmanager
def nothing_completed() -> Iterator[None]:
    """While a cell asks for a line: behind it the kernel would answer, and not before."""
    try:
        import readline
    except ImportError:
        yield
        return
    before = readline.get_completer()
    readline.set_completer(lambda _, __: None)
    try:
        yield
    finally:
        readline.set_completer(before)


def matches_of(kernel: Kernel, lines: list[str], line: str, *, begin: int, end: int) -> list[str]:
    """What could stand between `begin` and `end` of a line; nothing where the kernel says none."""
    before = "".join(f"{earlier}\n" for earlier in lines)
    try:
        told = kernel.complete(before + line, len(before) + end)
    except SandboxdError:
        return []
    starts_at = told.cursor_start - len(before)
    return [
        line[begin:starts_at] + match if starts_at >= begin else match[begin - starts_at :]
        for match in told.matches[:_MOST]
    ]
