"""Sandboxes as pods of a Kubernetes cluster, one each."""

from sandboxd.backends.kubernetes.backend import KubernetesBackend
from sandboxd.backends.kubernetes.opening import open_kubernetes
from sandboxd.backends.kubernetes.settings import KubernetesSettings

__all__ = ["KubernetesBackend", "KubernetesSettings", "open_kubernetes"]
