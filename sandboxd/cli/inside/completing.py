"""Tab completion by the kernel, where the terminal's own library has it."""

from __future__ import annotations

from sandboxd_client import Kernel, SandboxdError

_MOST = 200


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
            found[:] = matches_of(kernel, lines, line, begin=begin, end=end)
        return found[state] if state < len(found) else None

    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")


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
