"""Whom the kernel ends first where memory runs out."""

from __future__ import annotations

from pathlib import Path


def offer_to_the_kernel(pid: int) -> None:
    """Have the kernel choose that process first, and those that it has started last."""
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
