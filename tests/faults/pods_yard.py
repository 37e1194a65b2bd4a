"""What a run with faults stands on where boxes are pods: a cluster whose API server and whose
kubelet are killed, and whose pods are deleted by force.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import cycle

from tests.faults.inhabitants import Process, held
from tests.faults.stock import READY
from tests.support.cluster import POD_IMAGE, TestCluster
from tests.support.cluster_pods import Pods, cluster_table, first_process, is_first_of
from tests.support.service import Service

MOST = 30  # pods that there are at once
_AWAY_S = (0.0, 3.0)  # that what was killed stays away


class KubernetesYard:
    """Boxes are pods of one node."""

    backend = "kubernetes"
    slowness = 12.0
    # Boxes are killed and removed in the making too; a server that is away makes none; and a caller
    # whose request was cut by one daemon after the other is not patient for ever.
    excused = frozenset({"backend_unavailable", "start_failed", "api_unreachable"})

    def __init__(self, cluster: TestCluster) -> None:
        self._cluster = cluster
        self._doomed = cycle([("kube-apiserver",), ("kubelet",), ("kubelet", "kube-apiserver")])
        self.config = f"""
{cluster_table(cluster)}
[templates.python]
image = {json.dumps(POD_IMAGE)}
resources = {{cpu = 0.5, memory_mb = 128, pids = 64, disk_mb = 64}}
idle_timeout_s = 30
pool = {{ready = {READY}, max = {MOST}, starting = 12}}
"""

    def box_ids(self, service: Service) -> set[str]:
        """Every box has a pod."""
        return Pods(self._cluster, service).box_ids()

    @contextmanager
    def guest(self, service: Service, box_id: str) -> Iterator[Process | None]:
        """The first process of its container; None too while the server is away."""
        pid, uid = 0, ""
        with suppress(Exception):
            uid = str(Pods(self._cluster, service).facts(box_id)["metadata"]["uid"])
            pid = first_process(uid)
        with held(pid, is_it=lambda pid: is_first_of(pid, uid)) as process:
            yield process

    def launcher(self, service: Service, box_id: str) -> AbstractContextManager[Process | None]:
        """The node needs its own to the end."""
        return held(0, is_it=lambda _: False)

    def remove(self, service: Service, box_id: str) -> None:
        """Delete its pod by force."""
        Pods(self._cluster, service).remove(box_id)

    def ran(self, service: Service, box_id: str) -> list[str]:
        """Not where the node keeps it."""
        return []

    def upset(self, chance: random.Random) -> str:
        """Kill the server, the kubelet or both, one after the other, and start them again."""
        doomed = next(self._doomed)
        for program in doomed:
            self._cluster.end(program)
        time.sleep(chance.uniform(*_AWAY_S))
        self._cluster.start()
        return f"{' and '.join(doomed)} killed"

    def traces(self, service: Service) -> list[str]:
        """Pods and secrets."""
        pods = Pods(self._cluster, service)
        return [*sorted(pods.box_ids()), *pods.secrets()]
