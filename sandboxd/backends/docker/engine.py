"""Calls to a container engine: in worker threads, bounded, with deadlines, errors in our words.

Knows the docker SDK's low-level client and nothing of boxes or images.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import requests
from anyio import CapacityLimiter, to_thread
from docker import APIClient
from docker.errors import APIError, DockerException

from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

P = ParamSpec("P")
T = TypeVar("T")

CALL_S = 60.0  # what an engine under load may take for one call
_THREADS = 16
_DETAIL_CHARS = 2000


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

    def __init__(self, api: APIClient, *, threads: int = _THREADS) -> None:
        self.api = api
        self._limiter = CapacityLimiter(threads)

    async def call(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """One call, made as `engine.call(engine.api.inspect_container, id)`."""
        return await to_thread.run_sync(
            lambda: translated(method, *args, **kwargs),
            limiter=self._limiter,
            abandon_on_cancel=True,
        )

    async def aclose(self) -> None:
        """Close the connections. Calls that are under way end by their own deadline."""
        await to_thread.run_sync(self.api.close)


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
        f"the container engine does not answer ({str(error)[:_DETAIL_CHARS]}): "
        "is it running, and is `backend.docker.host` its address?",
        retry_after_s=2.0,
    )


def _status(error: APIError) -> int:
    response: Any = error.response
    return 500 if response is None else int(response.status_code)


def _words(error: APIError) -> str:
    return str(error.explanation or error)[:_DETAIL_CHARS].strip()
