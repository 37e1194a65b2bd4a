"""Proves whether a cluster enforces network policies: one pod listens, another may not reach it.

Many clusters keep policies and enforce none of them, in silence. Both pods are of the guest's own
image, and go as soon as the answer is there.
"""

from __future__ import annotations

from contextlib import suppress

import anyio
import structlog

from sandboxd.backends.kubernetes.creating import NO_ACCOUNT, NO_RIGHTS, pull_secrets
from sandboxd.backends.kubernetes.network.policies import drop_policies, policies_of, put_policies
from sandboxd.backends.kubernetes.objects import INSTALLATION, ISOLATED, labels_of, pods_path
from sandboxd.backends.kubernetes.pods import Pod, pod_from
from sandboxd.backends.kubernetes.settings import KubernetesSettings
from sandboxd.backends.kubernetes.talking.server import ApiServer, Json, Refused, refused_call
from sandboxd.errors import SandboxdError
from sandboxd.guest.tcp import GUEST_PORT
from sandboxd.wire.codes import ErrorCode

log = structlog.get_logger(__name__)

_PROBE_S = 90.0
_CLOSING_S = 15.0
_LOOK_EVERY_S = 0.25
_REACHED, _NOT_REACHED = 0, 1  # the exit codes of the guest's `reach`
_TRIES, _PAUSE_S = 8, 0.5  # policies take a moment to hold for a new pod


class NetworkProbe:
    """One probe of one namespace, under names of an installation's own."""

    def __init__(self, server: ApiServer, settings: KubernetesSettings, *, namespace: str) -> None:
        self._server = server.lane(4)
        self._settings = settings
        self._namespace = namespace
        # Of an owner of its own: the policies of boxes are none of the probe's.
        self._mark = f"{settings.installation[:48]}-probe"
        self._tag = f"{settings.tag}-probe"

    async def is_enforced(self) -> bool:
        """Whether a pod that may reach nothing reaches nothing. Leaves nothing behind.

        Raises `backend_unavailable` where that cannot be found out.
        """
        policies = policies_of(self._tag, self._mark, reached_from=["0.0.0.0/0"])[1:]
        try:
            with anyio.fail_after(_PROBE_S):
                await self._clear()
                await put_policies(self._server, self._namespace, policies)
                listener = await self._listener()
                code = await self._dialler(listener.address)
        except Refused as refusal:
            raise refused_call(refusal) from refusal
        except TimeoutError as error:
            raise _unknown(f"its two pods did not do it in {_PROBE_S:g} s") from error
        finally:
            with anyio.move_on_after(_CLOSING_S, shield=True), suppress(SandboxdError, Refused):
                await self._clear()
                await drop_policies(self._server, self._namespace, policies)
        if code not in {_REACHED, _NOT_REACHED}:
            raise _unknown(f"its pod ended with {code}")
        log.info("network.probed", enforced=code == _NOT_REACHED)
        return code == _NOT_REACHED

    async def _listener(self) -> Pod:
        """A pod that listens on the guest's port, once it does."""
        arguments = ["listen", f":{GUEST_PORT}"]
        name = await self._create("listens", arguments, isolated=False)
        while True:
            pod = await self._look(name)
            if pod.lives and pod.address:
                return pod
            if pod.is_over:
                raise _unknown(f"its listening pod ended: {pod.reason} {pod.message}".strip())
            await anyio.sleep(_LOOK_EVERY_S)

    async def _dialler(self, address: str) -> int:
        """The exit code of a pod that tries to reach it, and must not."""
        host = f"[{address}]" if ":" in address else address
        arguments = ["reach", f"{host}:{GUEST_PORT}", "--tries", str(_TRIES)]
        name = await self._create("dials", [*arguments, "--pause", f"{_PAUSE_S:g}"], isolated=True)
        while True:
            pod = await self._look(name)
            if pod.end is not None:
                return pod.end.exit_code
            if pod.is_over:
                raise _unknown(f"its dialling pod ended: {pod.reason} {pod.message}".strip())
            await anyio.sleep(_LOOK_EVERY_S)

    async def _create(self, what: str, arguments: list[str], *, isolated: bool) -> str:
        name = f"sandboxd-{self._tag}-{what}"
        labels = {**labels_of(self._mark), **({ISOLATED: "true"} if isolated else {})}
        body = probe_body(name, labels, image=self._settings.guest_image, arguments=arguments)
        body["spec"]["imagePullSecrets"] = pull_secrets(self._settings.image_pull_secrets)
        await self._server.create(pods_path(self._namespace), body)
        return name

    async def _look(self, name: str) -> Pod:
        return pod_from(await self._server.get(pods_path(self._namespace, name)))

    async def _clear(self) -> None:
        """Remove both, also those of a daemon that was killed, and wait until they are gone."""
        wanted = f"{INSTALLATION}={self._mark}"
        path = pods_path(self._namespace)
        while pods := (await self._server.get(path, labelSelector=wanted)).get("items"):
            for pod in pods:
                if not pod["metadata"].get("deletionTimestamp"):
                    await self._server.delete(f"{path}/{pod['metadata']['name']}", grace_s=1)
            await anyio.sleep(_LOOK_EVERY_S)


def probe_body(name: str, labels: dict[str, str], *, image: str, arguments: list[str]) -> Json:
    """A pod of the guest's image that has no rights and asks for next to nothing."""
    amounts = {"cpu": "50m", "memory": "32Mi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "restartPolicy": "Never",
            **NO_ACCOUNT,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsUser": 65534,
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "sandbox",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["/sandbox-guest"],
                    "args": arguments,
                    "resources": {"requests": amounts, "limits": amounts},
                    "securityContext": NO_RIGHTS,
                }
            ],
        },
    }


def _unknown(why: str) -> SandboxdError:
    return SandboxdError(
        ErrorCode.BACKEND_UNAVAILABLE,
        f"whether the cluster enforces network policies could not be found out: {why}; say it by "
        '`backend.kubernetes.network_policy = "enforced"` or `"none"`',
    )
