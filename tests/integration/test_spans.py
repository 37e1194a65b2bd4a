"""Spans of leases, commands and cells, as a collector gets them from a daemon that runs."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider

from sandboxd_client import Sandboxd
from tests.support.daemon import run_daemon

_TRACE, _CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
_PARENT = {"traceparent": f"00-{_TRACE}-{_CALLER}-01"}


@dataclass
class Collector:
    """What came. url: of OTLP over HTTP."""

    url: str
    spans: list[Span] = field(default_factory=list)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


def facts(span: Span) -> dict[str, str]:
    return {fact.key: fact.value.string_value for fact in span.attributes}


@contextmanager
def collector() -> Iterator[Collector]:
    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            for told in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in told.scope_spans:
                    found.spans.extend(scope.spans)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Door) as server:
        found = Collector(f"http://127.0.0.1:{server.server_port}")
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield found
        finally:
            server.shutdown()
            serving.join()


@pytest.mark.timeout(60)
def test_spans_of_a_lease_its_commands_and_cells_are_part_of_the_callers_trace(
    tmp_path: Path,
) -> None:
    config = '[telemetry]\notlp_endpoint = "{}"\n[templates.python]\nimage = "host"\n'
    with collector() as collected:
        text = config.format(collected.url)
        with (
            run_daemon(tmp_path, backend="local", config=text) as daemon,
            httpx.Client(base_url=daemon.url, timeout=50) as http,
        ):
            made = http.post("/v1/sandboxes", json={"template": "python"}, headers=_PARENT)
            own = f"/v1/sandboxes/{made.json()['id']}"
            body = {"cmd": "exit 3", "env": {"SECRET": "hush"}, "exec_id": "one"}
            http.post(f"{own}/execs", json=body, headers=_PARENT)
            events = {"Accept": "application/x-ndjson"}
            http.post(f"{own}/execs", json={"cmd": "true"}, headers=events)
            kernel = http.post(f"{own}/kernels", json={"spec": "python3"}).json()
            cells = f"{own}/kernels/{kernel['kernel_id']}/execute"
            http.post(cells, json={"code": "1 + 1", "cell_id": "sum"}, headers=_PARENT)
        # The daemon has ended: all that it had to tell is told.
        (lease,) = collected.named("sandboxd.lease")
        first, second = collected.named("sandboxd.exec")
        (cell,) = collected.named("sandboxd.cell")
        for span in (lease, first, cell):
            assert (span.trace_id.hex(), span.parent_span_id.hex()) == (_TRACE, _CALLER)
            assert facts(span)["sandboxd.sandbox_id"] == own.rpartition("/")[2]
            assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 60e9
        assert second.trace_id.hex() != _TRACE
        assert facts(first)["sandboxd.exec_id"] == "one"
        assert facts(first)["sandboxd.outcome"] == "exited"
        assert facts(cell)["sandboxd.cell_id"] == "sum"
        assert "hush" not in str(collected.spans)


def test_commands_that_are_streamed_are_measured_as_those_that_are_waited_for(
    tmp_path: Path,
) -> None:
    config = '[templates.python]\nimage = "x"\n'
    with (
        run_daemon(tmp_path, config=config) as daemon,
        httpx.Client(base_url=daemon.url) as http,
    ):
        made = http.post("/v1/sandboxes", json={"template": "python"})
        execs = f"/v1/sandboxes/{made.json()['id']}/execs"
        http.post(execs, json={"cmd": "true"})
        http.post(execs, json={"cmd": "true"}, headers={"Accept": "application/x-ndjson"})
        assert "\nsandboxd_exec_seconds_count 2.0\n" in http.get("/metrics").text


def test_a_program_that_has_spans_finds_ours_below_its_own(tmp_path: Path) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("a trainer")
    with collector() as collected:
        text = f'[telemetry]\notlp_endpoint = "{collected.url}"\n[templates.python]\nimage = "x"\n'
        with run_daemon(tmp_path, config=text) as daemon, Sandboxd(daemon.url) as client:
            with tracer.start_as_current_span("rollout") as rollout, client.lease("python") as box:
                box.exec("true")
            client.lease("python").release()
        own = format(rollout.get_span_context().trace_id, "032x")
        (command,) = collected.named("sandboxd.exec")
        assert command.trace_id.hex() == own
        leases = collected.named("sandboxd.lease")
        assert sorted(lease.trace_id.hex() == own for lease in leases) == [False, True]


def test_a_wrong_traceparent_is_none(tmp_path: Path) -> None:
    with collector() as collected:
        text = f'[telemetry]\notlp_endpoint = "{collected.url}"\n[templates.python]\nimage = "x"\n'
        with run_daemon(tmp_path, config=text) as daemon, httpx.Client(base_url=daemon.url) as http:
            wrong = {"traceparent": f"00-{'0' * 32}-{_CALLER}-01"}
            made = http.post("/v1/sandboxes", json={"template": "python"}, headers=wrong)
            assert made.status_code == 201, made.text
        (lease,) = collected.named("sandboxd.lease")
        assert lease.parent_span_id == b""
