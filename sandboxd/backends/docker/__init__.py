"""The docker backend: sandboxes as containers of an engine with Docker's API."""

from sandboxd.backends.docker.backend import DockerBackend
from sandboxd.backends.docker.opening import open_docker
from sandboxd.backends.docker.settings import DockerSettings

__all__ = ["DockerBackend", "DockerSettings", "open_docker"]
