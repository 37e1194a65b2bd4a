"""A person before a terminal, for checks: what is typed, and what is then to be seen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pyte

from sandboxd.guest import Attachment, Ended, Guest, Piece
from sandboxd.model.command import ExecRecord, TerminalSize
from tests.conformance.guest.steps import PATIENCE_S, command, start

_TIMES = 10  # that a question is asked


class _Display(pyte.Screen):
    def select_graphic_rendition(self, *attributes: int, private: bool = False) -> None:
        """Colours; vim's question for key codes looks like one, and pyte stumbles over it."""
        if not private:
            super().select_graphic_rendition(*attributes)


class Screen:
    """A terminal emulator at the end of one attachment."""

    def __init__(self, attachment: Attachment, exec_id: str, size: TerminalSize) -> None:
        self.exec_id = exec_id
        self.raw = b""
        self._attachment = attachment
        self._screen = _Display(size.cols, size.rows)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def lines(self) -> list[str]:
        """What is to be seen, without the blanks at the right."""
        return [line.rstrip() for line in self._screen.display]

    async def type(self, text: str) -> None:
        """Type keys."""
        await self._attachment.send_stdin(text.encode())

    async def resize(self, rows: int, cols: int) -> None:
        """Draw the window to another size."""
        self._screen.resize(rows, cols)
        await self._attachment.send_resize(TerminalSize(rows, cols))

    async def see(self, text: str) -> None:
        """Wait until the text is to be seen."""
        assert await self._sees(text, within_s=PATIENCE_S), f"no {text!r} in {self.lines}"

    async def ask(self, keys: str, text: str) -> None:
        """Type keys again and again until the text is to be seen."""
        for _ in range(_TIMES):
            await self.type(keys)
            if await self._sees(text, within_s=PATIENCE_S / _TIMES):
                return
        raise AssertionError(f"no {text!r} in {self.lines}")

    async def _sees(self, text: str, *, within_s: float) -> bool:
        with anyio.move_on_after(within_s):
            while not any(text in line for line in self.lines):
                event = await anext(self._attachment)
                assert not isinstance(event, Ended), f"it ended without {text!r}: {self.lines}"
                self._take(event)
            return True
        return False

    async def end(self) -> ExecRecord:
        """Wait for the end."""
        with anyio.fail_after(PATIENCE_S):
            async for event in self._attachment:
                if isinstance(event, Ended):
                    return event.record
                self._take(event)
        raise AssertionError("the line was cut")

    def _take(self, event: object) -> None:
        if isinstance(event, Piece):
            assert event.stream == "stdout"
            self.raw += event.data
            self._stream.feed(event.data)


@asynccontextmanager
async def screen_of(
    guest: Guest, *argv: str, rows: int = 24, cols: int = 80, **options: object
) -> AsyncIterator[Screen]:
    """Start a command on a terminal and sit down before it."""
    size = TerminalSize(rows, cols)
    exec_id = await start(guest, command(*argv, tty=size, **options))
    async with guest.attach(exec_id) as attachment:
        yield Screen(attachment, exec_id, size)
