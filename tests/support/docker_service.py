"""A daemon on an engine of the tests': its configuration, and its containers as the engine sees
them. All of it blocks.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import docker
import httpx

from sandboxd.backends.docker.labels import BOX, owned_by
from sandboxd.guest.run_dir import default_run_dir
from tests.support.service import Service, service

_CALL_S = 60


def config_on(
    host: str,
    image: str,
    *,
    pool: str,
    of_template: str = "",
    templates: str = "",
    backend: str = "",
) -> str:
    """A configuration with one template `python` of small boxes, and what is given besides."""
    return f"""
[backend.docker]
host = {json.dumps(host)}
{backend}
[templates.python]
image = {json.dumps(image)}
resources = {{memory_mb = 128, pids = 64}}
idle_timeout_s = 30
pool = {{{pool}}}
{of_template}
{templates}
"""


class Containers:
    """Those of one service, asked of the engine itself."""

    def __init__(self, host: str, service: Service) -> None:
        self._host = host
        self._service = service

    @property
    def installation(self) -> str:
        """The mark on everything of the service."""
        return (self._service.state / "installation").read_text()

    def all(self, **filters: str) -> list[dict[str, Any]]:
        """Every one, in whatever state. filters: what else is wanted, as the engine's filters."""
        wanted: dict[str, Any] = {**owned_by(self.installation), **filters}
        with closing(self._client()) as client:
            found: list[dict[str, Any]] = client.containers(all=True, filters=wanted)
        return found

    def box_ids(self) -> set[str]:
        """The boxes that there are containers of."""
        return {str(container["Labels"][BOX]) for container in self.all()}

    def facts(self, box_id: str) -> dict[str, Any]:
        """All that the engine says of a box's container."""
        with closing(self._client()) as client:
            (found,) = client.containers(all=True, filters=owned_by(self.installation, box_id))
            facts: dict[str, Any] = client.inspect_container(found["Id"])
        return facts

    def pid(self, box_id: str) -> int:
        """This machine's number of its first process; 0 if there is none."""
        return int(self.facts(box_id)["State"]["Pid"])

    def kill(self, box_id: str) -> bool:
        """End its first process, behind everybody's back. False if there is none any more."""
        pid = self.pid(box_id)
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid) if pid else -1
            if pidfd >= 0 and box_id in _cgroups_of(pid, self.facts(box_id)):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.close(pidfd)
                return True
        return False

    def traces(self) -> list[str]:
        """What is left of the service's boxes."""
        run_dir = default_run_dir(self.installation)
        left = [f"container {container['Id'][:12]}" for container in self.all()]
        return left + ([f"directory {run_dir}"] if run_dir.exists() else [])

    def _client(self) -> docker.APIClient:
        return docker.APIClient(base_url=self._host, version="1.41", timeout=_CALL_S)


def _cgroups_of(pid: int, facts: dict[str, Any]) -> str:
    """The box's id if the process is the container's own, so that no other is ever ended."""
    with suppress(OSError):
        if str(facts["Id"]) in Path(f"/proc/{pid}/cgroup").read_text():
            return str(facts["Config"]["Labels"][BOX])
    return ""


@contextmanager
def docker_service(folder: Path, host: str, config: str) -> Iterator[tuple[Service, Containers]]:
    """A started service on an engine; at the end nothing of it is there, which is checked."""
    with service(folder, backend="docker", config=config) as daemon:
        containers = Containers(host, daemon)
        yield daemon, containers
        daemon.end()
        assert containers.traces() == []


def pools(daemon: Service) -> dict[str, dict[str, Any]]:
    """What the daemon says of its pools, by template."""
    found = httpx.get(f"{daemon.url}/v1/pools", timeout=30).json()["pools"]
    return {pool["template"]: pool for pool in found}
