"""The metrics of the contract, in a registry of their own: two daemons fit in one process."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

_FAST = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.008, 0.015, 0.03, 0.06, 0.15, 0.5, 1, 3, 10, 30, 60)
_SLOW = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1, 2, 5, 10, 30, 60, 300)


# Else each name of the contract would bring a `_created` of its own.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Every series the daemon exposes; each name is part of the contract."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leases_granted = Counter(
            "sandboxd_leases_granted", "Leases granted.", ["pool"], registry=self.registry
        )
        self.lease_wait = Histogram(
            "sandboxd_lease_wait_seconds",
            "From the request to the lease.",
            buckets=_FAST,
            registry=self.registry,
        )
        self.sandboxes = Gauge(
            "sandboxd_sandboxes", "Boxes by state.", ["pool", "state"], registry=self.registry
        )
        self.sandboxes_ended = Counter(
            "sandboxd_sandboxes_ended", "Leases ended.", ["pool", "reason"], registry=self.registry
        )
        self.make_seconds = Histogram(
            "sandboxd_make_seconds",
            "Making one box.",
            ["backend"],
            buckets=_SLOW,
            registry=self.registry,
        )
        self.exec_seconds = Histogram(
            "sandboxd_exec_seconds",
            "Commands that were waited for.",
            buckets=_FAST,
            registry=self.registry,
        )
        self.cell_seconds = Histogram(
            "sandboxd_cell_seconds",
            "Cells that kernels ran.",
            ["outcome"],
            buckets=_FAST,
            registry=self.registry,
        )
        self.mcp_calls, self.mcp_servers, self.mcp_restarts = _mcp(self.registry)
        self.attached = Gauge(
            "sandboxd_attached", "Readers attached by WebSocket now.", registry=self.registry
        )
        self.detached = Counter(
            "sandboxd_detached",
            "Attachments that ended, by the code they closed with (0: the reader left).",
            ["code"],
            registry=self.registry,
        )
        self.port_connections = Gauge(
            "sandboxd_port_connections",
            "Connections to ports inside that are open now.",
            ["kind"],
            registry=self.registry,
        )
        self.queue_length = Gauge(
            "sandboxd_queue_length", "Callers waiting.", ["pool"], registry=self.registry
        )
        self.runs = Gauge("sandboxd_runs", "Runs by state.", ["state"], registry=self.registry)
        self.leaks_swept = Counter(
            "sandboxd_leaks_swept", "Boxes that nobody held, removed.", registry=self.registry
        )
        self.faults = Counter(
            "sandboxd_faults",
            "Errors and endings that carry a code.",
            ["fault", "code"],
            registry=self.registry,
        )
        self.store_write = Histogram(
            "sandboxd_store_write_seconds",
            "Writing to the lease store.",
            buckets=_FAST,
            registry=self.registry,
        )
        self.way_out_connections, self.way_out_bytes = _ways_out(self.registry)
        self.loop_lag = Histogram(
            "sandboxd_event_loop_lag_seconds",
            "How late the event loop runs what is due.",
            buckets=_FAST,
            registry=self.registry,
        )

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)


def _ways_out(registry: CollectorRegistry) -> tuple[Counter, Counter]:
    connections = Counter(
        "sandboxd_way_out_connections",
        "Connections that sandboxes made to the proxy or to a forward, and what was refused.",
        ["kind"],
        registry=registry,
    )
    passed = Counter(
        "sandboxd_way_out_bytes",
        "Bytes that went through ways out, into sandboxes and out of them.",
        ["direction"],
        registry=registry,
    )
    return connections, passed


def _mcp(registry: CollectorRegistry) -> tuple[Histogram, Gauge, Counter]:
    calls = Histogram(
        "sandboxd_mcp_call_seconds",
        "Requests to MCP servers, until they were answered.",
        ["server", "outcome"],
        buckets=_FAST,
        registry=registry,
    )
    servers = Gauge(
        "sandboxd_mcp_servers", "MCP servers that run now.", ["server"], registry=registry
    )
    restarts = Counter(
        "sandboxd_mcp_restarts",
        "MCP servers that were started anew after they had ended.",
        ["server"],
        registry=registry,
    )
    return calls, servers, restarts
