"""A daemon on a cluster of the tests': its configuration, and its pods as the cluster sees them.

All of it blocks.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sandboxd.backends.kubernetes.objects import (
    BOX,
    events_path,
    pods_path,
    secrets_path,
    selector,
)
from sandboxd.backends.kubernetes.talking.credentials import read_access
from sandboxd.backends.kubernetes.talking.server import Refused, request
from sandboxd.guest.inside import GUEST_INSIDE
from tests.support.cluster import GUEST_IMAGE, TestCluster
from tests.support.service import Service

NAMESPACE = "default"


def cluster_table(cluster: TestCluster, more: str = "") -> str:
    """The backend's table, for pods that ask for next to nothing of the node.

    What it says of policies is not so: the cluster keeps them and enforces none.
    """
    return f"""
[backend.kubernetes]
kubeconfig = {json.dumps(str(cluster.kubeconfig))}
guest_image = {json.dumps(GUEST_IMAGE)}
guest = "address"
network_policy = "enforced"
cpu_request = 0.01
memory_request = 0.05
{more}
"""


class Cluster:
    """A caller of its API server with every right."""

    def __init__(self, cluster: TestCluster) -> None:
        self._access = read_access(cluster.kubeconfig, "")

    def get(self, path: str, **query: str | int) -> dict[str, Any]:
        """An object or a list."""
        return self._call("GET", path, query=query)

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """A new object."""
        return self._call("POST", path, body=body)

    def replaced(self, path: str, body: dict[str, Any]) -> bool:
        """Put another in an object's place; False where somebody was faster."""
        try:
            self._call("PUT", path, body=body)
        except Refused as refusal:
            if refusal.status != 409:
                raise
            return False
        return True

    def change(self, path: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Change an object, which others may be changing too. Raises AssertionError."""
        for _ in range(20):
            body = self.get(path)
            change(body)
            if self.replaced(path, body):
                return
        raise AssertionError(f"{path} would not take it")

    def delete(self, path: str, **options: Any) -> None:
        """An object's end; gone is fine."""
        with suppress(Refused):
            self._call("DELETE", path, body={"kind": "DeleteOptions", **options})

    def _call(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        answer = request(self._access, method, path, **more)
        found: dict[str, Any] = json.loads(answer.data)
        return found


class Pods:
    """Those of one service, asked of the cluster itself."""

    def __init__(self, cluster: TestCluster, service: Service) -> None:
        self.cluster = Cluster(cluster)
        self._service = service

    @property
    def installation(self) -> str:
        """The mark on everything of the service."""
        return (self._service.state / "installation").read_text()

    def all(self) -> list[dict[str, Any]]:
        """Every one, in whatever state."""
        wanted = selector(self.installation)
        found: list[dict[str, Any]] = self.cluster.get(pods_path(NAMESPACE), labelSelector=wanted)[
            "items"
        ]
        return found

    def secrets(self) -> list[str]:
        """The names of its tokens that are there."""
        wanted = selector(self.installation)
        found = self.cluster.get(secrets_path(NAMESPACE), labelSelector=wanted)["items"]
        return [str(each["metadata"]["name"]) for each in found]

    def box_ids(self) -> set[str]:
        """The boxes that there are pods of."""
        return {str(pod["metadata"]["labels"][BOX]) for pod in self.all()}

    def facts(self, box_id: str) -> dict[str, Any]:
        """All that the cluster says of a box's pod."""
        wanted = selector(self.installation, box_id)
        (found,) = self.cluster.get(pods_path(NAMESPACE), labelSelector=wanted)["items"]
        facts: dict[str, Any] = found
        return facts

    def runs(self, box_id: str) -> bool:
        """Whether its sandbox runs, as its node tells."""
        try:
            statuses = self.facts(box_id)["status"].get("containerStatuses") or ()
        except ValueError:  # it went meanwhile
            return False
        return any("running" in status["state"] for status in statuses)

    def annotations(self, box_id: str) -> dict[str, str]:
        """What is noted on its pod."""
        found: dict[str, str] = self.facts(box_id)["metadata"].get("annotations") or {}
        return found

    def annotate(self, box_id: str, words: dict[str, str]) -> None:
        """Note something on its pod, over what is there."""

        def change(body: dict[str, Any]) -> None:
            body["metadata"]["annotations"] |= words

        self.cluster.change(
            pods_path(NAMESPACE, str(self.facts(box_id)["metadata"]["name"])), change
        )

    def words(self, box_id: str) -> list[str]:
        """The reasons of its events."""
        uid = self.facts(box_id)["metadata"]["uid"]
        found = self.cluster.get(events_path(NAMESPACE), fieldSelector=f"involvedObject.uid={uid}")
        return [str(event["reason"]) for event in found["items"]]

    def remove(self, box_id: str, *, grace_s: int = 0) -> None:
        """Delete its pod, as an operator might."""
        name = self.facts(box_id)["metadata"]["name"]
        self.cluster.delete(pods_path(NAMESPACE, name), gracePeriodSeconds=grace_s)

    def pid(self, box_id: str) -> int:
        """This machine's number of its first process; 0 if there is none."""
        return first_process(str(self.facts(box_id)["metadata"]["uid"]))

    def kill(self, box_id: str) -> bool:
        """End its first process, behind everybody's back. False if there is none any more."""
        return kill_first_process(str(self.facts(box_id)["metadata"]["uid"]))


def first_process(uid: str) -> int:
    """This machine's number of the first process in the sandbox of that pod; 0 if there is none."""
    return next((pid for pid in _processes() if is_first_of(pid, uid)), 0)


def kill_first_process(uid: str) -> bool:
    """SIGKILL it. False if there is none any more."""
    pid = first_process(uid)
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid) if pid else -1
        if pidfd >= 0 and is_first_of(pid, uid):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
            return True
    return False


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def is_first_of(pid: int, uid: str) -> bool:
    """Whether it is the guest that serves the sandbox of that pod, so that no other is ended."""
    at = Path(f"/proc/{pid}")
    with suppress(OSError):
        if uid not in (at / "cgroup").read_text():
            return False
        words = (at / "cmdline").read_bytes().decode(errors="replace").split("\0")
        inside = next(
            line.split()[-1]
            for line in (at / "status").read_text().splitlines()
            if line.startswith("NSpid:")
        )
        return words[:2] == [GUEST_INSIDE, "serve"] and inside == "1"
    return False
