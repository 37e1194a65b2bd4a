"""A terminal in memory: a line of input with echo, the keys that mean something, its size."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sandboxd.backends.fake.guest.refusals import Refusal
from sandboxd.backends.fake.guest.stdin import Stdin

_LARGEST_SIDE = 65535


def read_size(said: Any) -> tuple[int, int]:
    """Rows and columns. Raises Refusal."""
    rows, cols = (said.get(side) if isinstance(said, dict) else None for side in ("rows", "cols"))
    if isinstance(rows, int) and isinstance(cols, int) and _fits(rows) and _fits(cols):
        return rows, cols
    raise Refusal("bad_request", "`rows` and `cols` are from 1 to 65535")


def _fits(side: int) -> bool:
    return 1 <= side <= _LARGEST_SIDE


class Terminal(Stdin):
    """What is typed goes to the reader line by line, and is shown. It stays open to the end.

    show: writes to the command's output. interrupt: ends what runs in the foreground.
    """

    def __init__(
        self,
        order: Mapping[str, Any],
        first: bytes,
        *,
        show: Callable[[bytes], Awaitable[None]],
        interrupt: Callable[[], object],
    ) -> None:
        super().__init__(first)
        self.size = read_size(order["tty"])
        self._show = show
        self._interrupt = interrupt
        self._line = b""

    async def write(self, data: bytes) -> None:
        """Show what the command writes, a new line as terminals have it."""
        await self._show(data.replace(b"\n", b"\r\n"))

    async def read(self, limit: int) -> bytes:
        """A line, or empty once for each end of file that was typed."""
        piece = await super().read(limit)
        if not piece:
            self._ended = False
        return piece

    def end(self) -> None:
        """As if the key for the end of the file had been pressed, as often as it takes."""
        self._hand_over()
        super().end()

    async def _put(self, data: bytes) -> None:
        for key in (data[i : i + 1] for i in range(len(data))):
            if self._gone:
                raise Refusal("gone", "the process has ended")
            self.taken += 1
            await self._press(key)

    async def _press(self, key: bytes) -> None:
        match key:
            case b"\r" | b"\n":
                await self._show(b"\r\n")
                self._line += b"\n"
                self._hand_over()
            case b"\x03":  # ^C
                await self._show(b"^C\r\n")
                self._line = b""
                self._interrupt()
            case b"\x04":  # ^D
                if self._line:
                    self._hand_over()
                else:
                    super().end()
            case b"\x7f":  # rub out
                self._line = self._line[:-1]
                await self._show(b"\b \b")
            case _:
                self._line += key
                await self._show(key)

    def _hand_over(self) -> None:
        self._buffer += self._line
        self._line = b""
        self._notify()
