"""The caller's trace, where it has one: each request says as part of what it is made."""

from __future__ import annotations

import sys

_NAMES = {"traceparent", "tracestate"}


def trace_headers() -> list[tuple[bytes, bytes]]:
    """What OpenTelemetry would have a request carry here and now; nothing where it is not used.

    It is not imported: a program that has spans has loaded it.
    """
    propagate = sys.modules.get("opentelemetry.propagate")
    if propagate is None:
        return []
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return [
        (name.lower().encode(), value.encode("latin-1", "ignore"))
        for name, value in carrier.items()
        if name.lower() in _NAMES
    ]
