"""The way out of a terminal that passes every key on: Enter, `~`, `.`, as ssh has it."""

from __future__ import annotations

_LINE_ENDS = b"\r\n"


class Escape:
    """Finds the escape in what is typed. `~~` after Enter types one `~`."""

    __slots__ = ("_at_start", "_held")

    def __init__(self) -> None:
        self._at_start = True  # of a line
        self._held = False  # a `~` that may begin the escape

    def feed(self, typed: bytes) -> tuple[bytes, bool]:
        """What to pass on of it, and whether it says to leave; what follows is dropped then."""
        passed = bytearray()
        for key in typed:
            if self._held:
                self._held = False
                if key == ord("."):
                    return bytes(passed), True
                if key != ord("~"):
                    passed.append(ord("~"))
                self._at_start = False
            elif self._at_start and key == ord("~"):
                self._held = True
                continue
            passed.append(key)
            self._at_start = key in _LINE_ENDS
        return bytes(passed), False
