"""Helm as an operator has it, on a cluster of the tests': releases, their callers, and the end of
both.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sandboxd_client import Sandboxd
from scripts.images.daemon import write_from_debian
from tests.contract.speaker import eventually
from tests.support.cluster import GUEST_IMAGE, POD_IMAGE, TestCluster
from tests.support.cluster_tools import tool
from tests.support.daemon import ROOT
from tests.support.pages import free_port

CHART = ROOT / "helm"
DAEMON_IMAGE = "sandboxd/daemon:tests"
USER_ID = 10001
STORAGE_CLASS = "sandboxd-tests"

_HELM_S = 240
_UP_S = 120


def helm(*words: str, kubeconfig: Path | None = None, check: bool = True) -> str:
    """What it says, both streams. Raises AssertionError where it fails."""
    told = {} if kubeconfig is None else {"KUBECONFIG": str(kubeconfig)}
    done = subprocess.run(
        [tool("helm"), *words],
        env={**os.environ, **told},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_HELM_S,
        check=False,
    )
    assert done.returncode == 0 or not check, f"helm {' '.join(words)}\n{done.stdout}"
    return done.stdout


def bring_services(cluster: TestCluster) -> None:
    """Have Services lead somewhere, and the daemon's image be there; twice is once."""
    with (cluster.directory / "services").open("a+") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        mark.seek(0)
        if mark.read():
            return
        cluster.start(KUBE_PROXY="1")
        cluster.bring_archive(lambda into: write_from_debian(into, tag=DAEMON_IMAGE))
        mark.write("there")


class Release:
    """A release in a namespace of its own, of a chart with values for the tests' cluster."""

    def __init__(self, cluster: TestCluster, name: str, namespace: str) -> None:
        self.cluster = cluster
        self.name = name
        self.namespace = namespace
        self.deployment = name if "sandboxd" in name else f"{name}-sandboxd"
        self._volume = f"{namespace}-{name}"
        self._place = cluster.directory / "var" / "volumes" / self._volume

    # ------------------------------------------------------------------------------------- helm

    def install(self, *words: str) -> str:
        """A new release, ready."""
        self._make_volume()
        return self._helm("install", *self._values(), "--wait", "--timeout=3m", *words)

    def upgrade(self, *words: str, check: bool = True) -> str:
        """Another revision of it, ready."""
        return self._helm("upgrade", *self._values(), "--wait", "--timeout=3m", *words, check=check)

    def rollback(self) -> str:
        """The revision before."""
        self._call("rollback", self.name, "--wait", "--timeout=3m")
        return self.rolled_out()

    def test(self) -> str:
        """`helm test`."""
        return self._call("test", self.name, "--logs")

    def uninstall(self, *words: str, check: bool = True) -> str:
        """Its end."""
        return self._call("uninstall", self.name, "--wait", "--timeout=4m", *words, check=check)

    def _helm(self, verb: str, *words: str, check: bool = True) -> str:
        return self._call(verb, self.name, str(CHART), *words, check=check)

    def _call(self, *words: str, check: bool = True) -> str:
        try:
            return helm(
                *words, "-n", self.namespace, kubeconfig=self.cluster.kubeconfig, check=check
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.words()}") from error

    def _values(self) -> list[str]:
        image, tag = DAEMON_IMAGE.split(":")
        guest, guest_tag = GUEST_IMAGE.split(":")
        values = {
            "image": {"repository": image, "tag": tag, "pullPolicy": "Never"},
            "guestImage": {"repository": guest, "tag": guest_tag},
            "persistence": {"storageClass": STORAGE_CLASS},
            "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": None},
            # The tests' cluster enforces no policy, which is not what these tests are about.
            "sandboxes": {"networkPolicy": "enforced", "cpuRequest": 0.01, "memoryRequest": 0.1},
            "templates": {
                "python": {
                    "image": POD_IMAGE,
                    "resources": {"cpu": 0.5, "memory_mb": 256, "pids": 64, "disk_mb": 64},
                    "pool": {"ready": 1, "max": 24},
                }
            },
        }
        file = self.cluster.directory / f"values-{self._volume}.json"
        file.write_text(json.dumps(values))
        return ["-f", str(file)]

    # ------------------------------------------------------------------------- the cluster's view

    def _make_volume(self) -> None:
        self._place.mkdir(parents=True)
        os.chown(self._place, USER_ID, USER_ID)
        self._place.chmod(0o700)
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": self._volume},
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "storageClassName": STORAGE_CLASS,
                    "hostPath": {"path": str(self._place)},
                    "claimRef": {"namespace": self.namespace, "name": f"{self.deployment}-state"},
                },
            }
        )

    def apply(self, body: dict[str, Any]) -> None:
        """Have the object be as told."""
        file = self.cluster.directory / f"apply-{self._volume}.json"
        file.write_text(json.dumps(body))
        self.cluster.kubectl("apply", "-f", str(file))

    def kubectl(self, *words: str) -> str:
        """What kubectl says of its namespace."""
        return self.cluster.kubectl("-n", self.namespace, *words)

    def objects(self, kinds: str, **labels: str) -> list[str]:
        """The names of what there is of these kinds with these labels, as `kind/name`."""
        chosen = ",".join(f"{name}={value}" for name, value in labels.items())
        return self.kubectl("get", kinds, "-l", chosen, "-o", "name").split()

    def rolled_out(self) -> str:
        """Wait until the deployment is what it is to be."""
        return self.kubectl(
            "rollout", "status", f"deployment/{self.deployment}", f"--timeout={_UP_S}s"
        )

    def words(self) -> str:
        """What is known of a failure: pods, events, the daemon's log."""
        told = ["get", "pods,jobs,pvc"], ["get", "events"], ["logs", f"deploy/{self.deployment}"]
        return "\n".join(self._try(words)[-3000:] for words in told)

    def _try(self, words: Sequence[str]) -> str:
        try:
            return self.kubectl(*words)
        except subprocess.CalledProcessError as error:
            return f"{error.stdout}{error.stderr}"

    @property
    def installation(self) -> str:
        """The mark on everything that its daemon makes."""
        return (self._place / "installation").read_text()

    def sandboxes(self) -> list[str]:
        """The pods that are its sandboxes, wherever."""
        found = self.cluster.kubectl(
            *("get", "pods", "-A", "-l", f"sandboxd/installation={self.installation}"),
            *("-o", "jsonpath={.items[*].metadata.name}"),
        )
        return found.split()

    # ------------------------------------------------------------------------------------ callers

    def secret(self) -> dict[str, str]:
        """What its Secret of keys holds."""
        found = json.loads(self.kubectl("get", "secret", f"{self.deployment}-keys", "-o", "json"))
        return dict(found["data"])

    def key(self, name: str = "trainer") -> str:
        """A key, as the chart made it."""
        return b64decode(self.secret()[name]).decode()

    @contextmanager
    def forwarded(self) -> Iterator[str]:
        """Its Service's address, on a port of this machine."""
        port = free_port()
        command = [tool("kubectl"), "-n", self.namespace, "port-forward"]
        target = [f"service/{self.deployment}", f"{port}:8420"]
        environ = {**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig)}
        with subprocess.Popen(
            [*command, *target], env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as running:
            try:
                assert running.stdout is not None
                assert running.stdout.readline().startswith(b"Forwarding")
                yield f"http://127.0.0.1:{port}"
            finally:
                running.kill()

    @contextmanager
    def client(self) -> Iterator[Sandboxd]:
        """A caller by the address of the daemon's pod, which this machine reaches."""
        with Sandboxd(self.address(), key=self.key(), patience_s=_UP_S) as client:
            yield client

    def address(self) -> str:
        """Of its Service: kept over the daemon's end."""
        host = self.kubectl(
            "get", "service", self.deployment, "-o", "jsonpath={.spec.clusterIP}"
        ).strip()
        return f"http://{host}:8420"

    # --------------------------------------------------------------------------------------- end

    def end(self) -> None:
        """Nothing of it is left, whatever became of it."""
        self._call("uninstall", self.name, "--no-hooks", "--ignore-not-found", check=False)
        installation = self._place / "installation"
        if installation.exists():
            mark = f"sandboxd/installation={installation.read_text()}"
            self.cluster.kubectl("delete", "pods,secrets,networkpolicies", "-A", "-l", mark)
        self.cluster.kubectl("delete", "pv", self._volume, "--ignore-not-found", "--wait=false")


@contextmanager
def release(cluster: TestCluster, name: str, namespace: str) -> Iterator[Release]:
    """One that is not there yet, in a namespace that is made; both are gone at the end."""
    opened = Release(cluster, name, namespace)
    cluster.kubectl("create", "namespace", namespace)
    try:
        yield opened
    finally:
        try:
            opened.end()
        finally:
            cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def settle(release: Release, count: int, *, within_s: float = 60) -> None:
    """Wait until it has so many sandboxes, warm ones among them."""
    eventually(
        lambda: len(release.sandboxes()) == count,
        within_s=within_s,
        what=f"{count} sandboxes, not {release.sandboxes()}",
    )
