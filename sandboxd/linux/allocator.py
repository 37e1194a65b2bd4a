"""How this process's C library gives memory back."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # <malloc.h>
_LARGE_BYTES = 1 << 20


def give_back_large_blocks() -> None:
    """Have large blocks returned to the machine as soon as they are free.

    Left alone, glibc learns from the first freed block of 20 MB to keep such for the next, and a
    daemon that was busy once never looks idle again. Other libraries have no such habit.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, _LARGE_BYTES)
