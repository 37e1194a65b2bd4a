"""Who we are at which API server, read anew whenever it is asked. Blocking."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import yaml
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config
from kubernetes.config.kube_config import list_kube_config_contexts

from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CONNECTIONS = 64
MEND = (
    "name a file by `backend.kubernetes.kubeconfig` or KUBECONFIG, or run the daemon in the cluster"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A client with credentials. namespace: theirs. inside: we run in the cluster ourselves."""

    api: ApiClient
    namespace: str
    inside: bool


def empty_keys_dir(keys_dir: Path) -> None:
    """Take away what a killed daemon left in it. Raises OSError."""
    shutil.rmtree(keys_dir, ignore_errors=True)
    keys_dir.mkdir(mode=0o700, parents=True)


def read_access(kubeconfig: Path | None, context: str, *, keys_dir: Path | None = None) -> Access:
    """What the file says, else the pod that we run in, else KUBECONFIG or the usual file.

    keys_dir: where keys that stand in the file itself lie as files, which TLS wants them to be.
    The client library takes them away when the process ends, unless it is killed.

    Raises `backend_unavailable` with the mend.
    """
    configuration = Configuration()
    try:
        if kubeconfig is None and not context and (_ACCOUNT / "token").is_file():
            load_incluster_config(client_configuration=configuration)
            namespace, inside = (_ACCOUNT / "namespace").read_text().strip(), True
        else:
            namespace, inside = _from_file(kubeconfig, context, configuration, keys_dir), False
    except (ConfigException, OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise SandboxdError(
            ErrorCode.BACKEND_UNAVAILABLE,
            f"there are no credentials for a cluster ({str(error)[:500]}): {MEND}",
        ) from error
    # We try again ourselves, knowing which calls may be made twice.
    configuration.retries = False
    configuration.connection_pool_maxsize = _CONNECTIONS
    configuration.keep_alive = True
    return Access(api=ApiClient(configuration), namespace=namespace or "default", inside=inside)


def _from_file(
    path: Path | None, context: str, configuration: Configuration, keys_dir: Path | None
) -> str:
    """The namespace that its context names; empty if it names none."""
    file = str(path) if path is not None else os.environ.get("KUBECONFIG") or None
    load_kube_config(
        config_file=file,
        context=context or None,
        client_configuration=configuration,
        persist_config=False,
        temp_file_path=None if keys_dir is None else str(keys_dir),
    )
    contexts, active = list_kube_config_contexts(config_file=file)
    chosen = next((each for each in contexts if each["name"] == context), active)
    return str(chosen["context"].get("namespace") or "")
