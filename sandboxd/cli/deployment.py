"""Brings a daemon's own deployment in a cluster down, so that nothing fills its pools again."""

from __future__ import annotations

import time

from sandboxd.backends.kubernetes.objects import pods_path
from sandboxd.backends.kubernetes.talking.credentials import Access, read_access
from sandboxd.backends.kubernetes.talking.server import Refused, exchange
from sandboxd.cli.faults import CliError
from sandboxd.settings import Settings

_NOT_FOUND = 404
_GONE_S = 120.0
_LOOK_EVERY_S = 0.5


def stop_deployment(settings: Settings, name: str) -> None:
    """Ask for no pods of it, and wait until there are none. One that is gone is fine. Blocking.

    It is looked for in the namespace of our credentials. Raises `backend_unavailable`, and
    CliError where we may not, or where its pods stay.
    """
    options = settings.backend.kubernetes
    access = read_access(options.kubeconfig, options.context)
    at = f"/apis/apps/v1/namespaces/{access.namespace}/deployments/{name}"
    try:
        scale = exchange(access, "GET", f"{at}/scale")
        exchange(access, "PUT", f"{at}/scale", body={**scale, "spec": {"replicas": 0}})
        _await_gone(access, str(scale["status"].get("selector") or ""), name)
    except Refused as refusal:
        if refusal.status != _NOT_FOUND:
            raise CliError(f"deployment {name}: {refusal.detail}") from refusal
    finally:
        access.api.close()


def _await_gone(access: Access, selector: str, name: str) -> None:
    path, deadline = pods_path(access.namespace), time.monotonic() + _GONE_S
    while exchange(access, "GET", path, query={"labelSelector": selector}).get("items"):
        if time.monotonic() > deadline:
            text = f"the pods of deployment {name} are not gone after {_GONE_S:g} s; delete them"
            raise CliError(text)
        time.sleep(_LOOK_EVERY_S)  # noqa: TID251 - a verb of the program, on no event loop
