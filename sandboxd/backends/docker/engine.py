"""Calls to a container engine: in worker threads, bounded, with deadlines, errors in our words.

Knows the docker SDK's low-level client and nothing of boxes or images.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import requests
from anyio import CapacityLimiter, to_thread
from docker import APIClient
from docker.errors import APIError, DockerException
from docker.utils import kwargs_from_env

from sandboxd.backends.docker.engine_socket import SCHEME, use_own_connections
from sandboxd.backends.parts.system_words import system_words
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

P = ParamSpec("P")
T = TypeVar("T")

CALL_S = 60  # what an engine under load may take for one call
_ANSWER_S = 3  # what one takes that is asked whether it is there
_THREADS = 16
_CONNECTIONS = 64
_DETAIL_CHARS = 2000
_OLDEST_VERSION = "1.24"  # what the SDK and all engines know
_USUAL_HOST = "unix:///var/run/docker.sock"


class EngineRefused(Exception):
    """The engine answered, and said no. status is HTTP's; 404 for what is gone."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class Engine:
    """One engine, reached through the docker SDK.

    Every method raises EngineRefused for what the engine refuses, and `backend_unavailable` where
    it does not answer. A cancelled call is left to its thread: what it began may still happen.
    """

    def __init__(
        self,
        api: APIClient,
        *,
        host: str = "",
        tls_dir: Path | None = None,
        threads: int = _THREADS,
    ) -> None:
        self.api = api
        self.host = host
        self._tls_dir = tls_dir
        self._limiter = CapacityLimiter(threads)
        self._answering = CapacityLimiter(1)

    def lane(self, threads: int) -> Engine:
        """The same engine with calls of its own, which never queue behind these."""
        return Engine(self.api, host=self.host, tls_dir=self._tls_dir, threads=threads)

    async def call(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """One call, made as `engine.call(engine.api.inspect_container, id)`."""
        return await to_thread.run_sync(
            lambda: translated(method, *args, **kwargs),
            limiter=self._limiter,
            abandon_on_cancel=True,
        )

    async def answers(self) -> bool:
        """Whether it lets somebody new in. One that is stopping still talks to old callers."""
        return await to_thread.run_sync(
            self._answers, limiter=self._answering, abandon_on_cancel=True
        )

    def _answers(self) -> bool:
        try:
            fresh = connect(
                self.host,
                tls_dir=self._tls_dir,
                version=self.api.api_version,
                timeout_s=_ANSWER_S,
            )
            try:
                return bool(translated(fresh.ping))
            finally:
                fresh.close()
        except (EngineRefused, SandboxdError):
            return False

    async def aclose(self) -> None:
        """Close the connections. Calls that are under way end by their own deadline."""
        await to_thread.run_sync(self.api.close)


async def open_engine(host: str, *, tls_dir: Path | None = None) -> Engine:
    """The engine at `host`. Raises `backend_unavailable` if it does not answer.

    host: its address; empty: DOCKER_HOST, else the usual socket. tls_dir: a folder with `ca.pem`,
    `cert.pem` and `key.pem`; None: as DOCKER_TLS_VERIFY and DOCKER_CERT_PATH say.
    """
    api = await to_thread.run_sync(partial(connect, host, tls_dir=tls_dir), abandon_on_cancel=True)
    return Engine(api, host=host, tls_dir=tls_dir)


def connect(
    host: str, *, tls_dir: Path | None = None, version: str = "", timeout_s: int = CALL_S
) -> APIClient:
    """A client of the engine. Blocking. Raises as `open_engine`.

    tls_dir: as for `open_engine`. version: of its API; empty: the newest that it has.
    """
    if not version:
        first = _client(host, _OLDEST_VERSION, timeout_s, tls_dir)
        try:
            version = str(translated(first.version, api_version=False)["ApiVersion"])
        except EngineRefused as refusal:  # as one does that wants a key
            raise unavailable(refusal) from refusal
        finally:
            first.close()
    return _client(host, version, timeout_s, tls_dir)


def _arguments(environment: Mapping[str, str]) -> dict[str, Any]:
    return {**kwargs_from_env(environment=environment)}


def _environment(host: str, tls_dir: Path | None) -> dict[str, str]:
    """The variables that engines' clients read, with what was given instead of them."""
    given = {"DOCKER_HOST": host} if host else {}
    if tls_dir is not None:
        given |= {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(tls_dir)}
    return {**os.environ, **given}


def _client(host: str, version: str, timeout_s: int, tls_dir: Path | None) -> APIClient:
    arguments: dict[str, Any] = {"base_url": _USUAL_HOST}
    arguments |= translated(_arguments, _environment(host, tls_dir))
    api = translated(
        APIClient, version=version, timeout=timeout_s, max_pool_size=_CONNECTIONS, **arguments
    )
    if "tls" in arguments:
        # Else the certificates that a variable names for the web would be believed instead of
        # the engine's own.
        api.trust_env = False
    if (at := address(host)).startswith(SCHEME):
        path = at.removeprefix(SCHEME)
        use_own_connections(api, path, timeout_s=timeout_s, most=_CONNECTIONS)
    return api


def address(host: str) -> str:
    """What `host` stands for."""
    return host or os.environ.get("DOCKER_HOST", "") or _USUAL_HOST


def translated(method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The call, with the SDK's exceptions in our words. Blocking."""
    try:
        return method(*args, **kwargs)
    except APIError as error:
        raise EngineRefused(_status(error), _words(error)) from error
    except (requests.RequestException, DockerException, OSError) as error:
        raise unavailable(error) from error


def unavailable(error: object) -> SandboxdError:
    """The engine does not answer, or not in its own language."""
    return SandboxdError(
        ErrorCode.BACKEND_UNAVAILABLE,
        f"the container engine does not answer ({system_words(error)[:_DETAIL_CHARS]}): "
        "is it running, and is `backend.docker.host` its address?",
        retry_after_s=2.0,
    )


def _status(error: APIError) -> int:
    response: Any = error.response
    return 500 if response is None else int(response.status_code)


def _words(error: APIError) -> str:
    return str(error.explanation or error)[:_DETAIL_CHARS].strip()
