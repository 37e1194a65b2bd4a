"""Spans of leases, commands and cells, for whoever collects them: each is told when it is over.

Like the log they are set up once for the process. Where nobody collects, nothing is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")

Fact = str | int | float | bool

_parent: ContextVar[str] = ContextVar("traceparent", default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that took its time. began_at, ended_at: Unix seconds.

    parent: the caller's `traceparent`, as part of which it happened; empty for none. facts: ids and
    outcomes; neither a secret nor an environment, a command or its output.
    """

    name: str
    began_at: float
    ended_at: float
    parent: str = ""
    failed: bool = False
    facts: Mapping[str, Fact] = field(default_factory=dict)


Sink = Callable[[Span], None]


class _Collection:
    """Who collects in this process."""

    sink: Sink | None = None


def collect(sink: Sink | None) -> None:
    """Have spans told to it from now on; None: to nobody. It must not wait."""
    _Collection.sink = sink


def take_parent(traceparent: str) -> None:
    """What is done from here on, in this task and those it starts, is part of the caller's trace.

    What is no `traceparent` of the W3C counts as none.
    """
    if _Collection.sink is not None:
        _parent.set(traceparent if _TRACEPARENT.match(traceparent) else "")


def parent() -> str:
    """The `traceparent` that was taken, for what goes on in another task."""
    return _parent.get() if _Collection.sink is not None else ""


def tell(
    name: str,
    *,
    began_at: float,
    ended_at: float,
    parent: str,
    failed: bool = False,
    **facts: Fact | None,
) -> None:
    """It is over. Facts that are None are left out."""
    if _Collection.sink is None:
        return
    known = {key: value for key, value in facts.items() if value is not None}
    _Collection.sink(
        Span(
            name=name,
            began_at=began_at,
            ended_at=ended_at,
            parent=parent,
            failed=failed,
            facts=known,
        )
    )
