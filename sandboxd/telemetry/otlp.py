"""Sends spans by OpenTelemetry's protocol, where the extra `otel` is installed.

An adapter: OpenTelemetry's own thread sends them in batches, out of a queue that is bounded and
drops what does not fit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio import to_thread

from sandboxd import __version__
from sandboxd.errors import SandboxdError
from sandboxd.telemetry.spans import Span, collect
from sandboxd.wire.codes import ErrorCode

_LAST_WORDS_S = 3.0
_NS = 1_000_000_000


@asynccontextmanager
async def spans_sent_to(endpoint: str, *, installation: str) -> AsyncIterator[None]:
    """Send the process's spans there for as long as the block lasts.

    endpoint: of OTLP over HTTP, without `/v1/traces`; empty: nothing is sent. What is not sent
    three seconds after the end is lost. Raises `not_supported` where the extra is missing.
    """
    if not endpoint:
        yield
        return
    sender = _Sender(endpoint, installation=installation)
    collect(sender.send)
    try:
        yield
    finally:
        collect(None)
        with anyio.move_on_after(_LAST_WORDS_S, shield=True):
            await to_thread.run_sync(sender.close, abandon_on_cancel=True)


class _Sender:
    def __init__(self, endpoint: str, *, installation: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
                OTLPSpanExporter,
            )
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an extra
            from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
            from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415
            from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
                TraceContextTextMapPropagator,
            )
        except ImportError as error:
            raise SandboxdError(
                ErrorCode.NOT_SUPPORTED,
                "`telemetry.otlp_endpoint` needs OpenTelemetry: pip install 'sandboxd[otel]'",
            ) from error
        facts = {
            "service.name": "sandboxd",
            "service.version": __version__,
            "service.instance.id": installation,
        }
        self._provider = TracerProvider(resource=Resource.create(facts), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("sandboxd", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._failed = Status(StatusCode.ERROR)

    def send(self, span: Span) -> None:
        """Put it into the queue."""
        begun = self._tracer.start_span(
            f"sandboxd.{span.name}",
            context=self._propagator.extract({"traceparent": span.parent}),
            start_time=int(span.began_at * _NS),
            attributes={f"sandboxd.{name}": fact for name, fact in span.facts.items()},
        )
        if span.failed:
            begun.set_status(self._failed)
        begun.end(end_time=int(span.ended_at * _NS))

    def close(self) -> None:
        """Send what is queued. Blocking."""
        self._provider.shutdown()
