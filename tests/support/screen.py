"""A person at a terminal: a program on a real pseudo-terminal, its screen read by an emulator."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyte

_PATIENCE_S = 10.0
# Makes the pseudo-terminal the program's controlling one, so that it hears of its size.
_AT_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


class _Screen(pyte.Screen):
    """The emulator's, deaf to what vim asks of newer terminals."""

    def select_graphic_rendition(self, *attrs: int, private: bool = False) -> None:
        """Colours and the like."""
        if not private:
            super().select_graphic_rendition(*attrs)


class Person:
    """Types, looks at the screen, changes the window's size."""

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str], rows: int, cols: int
    ) -> None:
        self._master, self._slave = pty.openpty()
        self.screen = _Screen(cols, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.size(rows, cols)
        self.before = termios.tcgetattr(self._slave)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _AT_TERMINAL, *argv],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            env={**_surroundings(), **env, "TERM": "xterm-256color"},
        )

    @property
    def restored(self) -> bool:
        """Whether the terminal is as it was before."""
        return termios.tcgetattr(self._slave) == self.before

    @property
    def text(self) -> str:
        """What the screen shows."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def type(self, keys: str | bytes) -> None:
        """Press keys."""
        os.write(self._master, keys.encode() if isinstance(keys, str) else keys)

    def size(self, rows: int, cols: int) -> None:
        """Drag the window's corner."""
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        self.screen.resize(rows, cols)

    def sees(self, what: str | Callable[[str], bool], *, within_s: float = _PATIENCE_S) -> str:
        """Wait until the screen shows it; the screen then."""
        fits = (lambda text: what in text) if isinstance(what, str) else what
        due = time.monotonic() + within_s
        while not fits(self.text):
            left = due - time.monotonic()
            assert left > 0, f"{what!r} is not on the screen:\n{self.text}"
            self._look(left)
        return self.text

    def waits(self) -> int:
        """Wait for the program's end; its exit status."""
        due = time.monotonic() + _PATIENCE_S
        while (status := self.process.poll()) is None:
            assert time.monotonic() < due, f"it does not end:\n{self.text}"
            self._look(0.05)
        self._look(0)
        return status

    def close(self) -> None:
        """Leave nothing."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(_PATIENCE_S)
        os.close(self._master)
        os.close(self._slave)

    def _look(self, within_s: float) -> None:
        if select.select([self._master], [], [], within_s)[0]:
            self._stream.feed(os.read(self._master, 65536))


@contextmanager
def at_terminal(
    *argv: str, env: Mapping[str, str], rows: int = 24, cols: int = 80
) -> Iterator[Person]:
    """Somebody who has just started that program on a terminal."""
    person = Person(argv, env=env, rows=rows, cols=cols)
    try:
        yield person
    finally:
        person.close()


def _surroundings() -> dict[str, str]:
    """Ours, without another terminal's size."""
    return {name: text for name, text in os.environ.items() if name not in {"COLUMNS", "LINES"}}
