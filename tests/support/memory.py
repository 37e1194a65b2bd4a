"""Memory: whom the kernel ends first where it runs out, and when garbage is collected."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandboxd.daemon import _GC_THRESHOLDS


def offer_to_the_kernel(pid: int) -> None:
    """Have the kernel choose that process first, and those that it has started last."""
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


@contextmanager
def seldom_collected() -> Iterator[None]:
    """As in a daemon, whose own objects are left out of collections, which are seldom there."""
    usual = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()
