"""Ports inside containers: as on every backend, with no network in the sandbox at all."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.conftest import EngineHost
from tests.support.daemon import RunningDaemon
from tests.support.docker_service import config_on, docker_service
from tests.support.engine import missing
from tests.support.ports import PORT, problem, serving, told, websocket

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(120),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


def test_a_server_in_a_container_is_reached_and_its_death_cuts(
    engine_host: EngineHost, tmp_path: Path
) -> None:
    config = config_on(engine_host.host, engine_host.image, pool="ready = 1, max = 2")
    with (
        docker_service(tmp_path, engine_host.host, config) as (service, containers),
        httpx.Client(base_url=service.url, timeout=15) as http,
        serving(http) as sandbox,
    ):
        daemon = RunningDaemon(service.url, service.pid, service.log)
        path = f"{sandbox}/ports/{PORT}"
        assert told(http.post(f"{path}/echo", content=b"x" * 100_000))["size"] == 100_000
        with websocket(daemon, f"{path}/ws", additional_headers={}) as opened:
            opened.send(b"x" * 1_000_000)
            assert opened.recv(10) == b"x" * 1_000_000
        (box_id,) = [box for box in containers.box_ids() if _listens(containers.pid(box))]
        with http.stream("GET", f"{path}/endless?old") as answer:
            pieces = answer.iter_raw()
            next(pieces)
            assert containers.kill(box_id)
            with pytest.raises(httpx.RemoteProtocolError):
                for _ in pieces:
                    pass
        status, code, _ = problem(http.get(f"{path}/echo"))
        assert (status, code) == (410, "sandbox_lost")


def _listens(pid: int) -> bool:
    """Whether something listens on the port in a process's network."""
    return f":{PORT:04X} " in Path(f"/proc/{pid}/net/tcp").read_text()
