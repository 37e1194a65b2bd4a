"""One pull: the engine's stream of progress, read in a thread, to its end or its error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import requests
import urllib3
from anyio import CapacityLimiter, to_thread
from docker import APIClient

from sandboxd.backends.docker.engine import unavailable
from sandboxd.backends.docker.imaging.verdicts import Cause
from sandboxd.model.image import ImageName

_CONNECT_S = 10.0
_MAX_WORDS = 1000
_MAX_LAYERS = 1000
_MAX_LINE_BYTES = 1 << 20


class PullFailed(Exception):
    """It ended without the image. cause: None where the words must tell."""

    def __init__(self, words: str, cause: Cause | None = None) -> None:
        super().__init__(words)
        self.words = words
        self.cause = cause


@dataclass(slots=True)
class Progress:
    """How far a pull is. Written by the reading thread, read by anybody; each value is whole."""

    status: str = ""
    done_bytes: dict[str, int] = field(default_factory=dict)  # by layer
    all_bytes: dict[str, int] = field(default_factory=dict)

    def take(self, event: dict[str, Any]) -> None:
        """Note one event of the engine."""
        self.status = str(event.get("status", ""))[:_MAX_WORDS]
        layer, detail = str(event.get("id", "")), event.get("progressDetail") or {}
        known = layer in self.all_bytes or len(self.all_bytes) < _MAX_LAYERS
        if self.status == "Downloading" and known and detail.get("total"):
            self.all_bytes[layer] = int(detail["total"])
            self.done_bytes[layer] = int(detail.get("current", 0))

    def __str__(self) -> str:
        done, whole = sum(self.done_bytes.copy().values()), sum(self.all_bytes.copy().values())
        return f"{self.status or 'asking'}, {done >> 20} of {whole >> 20} MiB"


class Pull:
    """One pull. `stop` may be called from another thread than `read`."""

    def __init__(self, api: APIClient, name: ImageName, *, auth: str, stall_s: float) -> None:
        """auth: the encoded header, or empty. stall_s: between two events."""
        self.progress = Progress()
        self._api = api
        self._name = name
        self._auth = auth
        self._stall_s = stall_s
        self._body: urllib3.HTTPResponse | None = None
        self._stopped = False

    def read(self) -> None:
        """Pull, to the end. Blocking.

        Raises PullFailed, and `backend_unavailable` where the engine goes away.
        """
        try:
            with self._begin() as response:
                if not response.ok:
                    raise PullFailed(_message(response))
                for event in _events(response):
                    if self._stopped:
                        return
                    if words := _error(event):
                        raise PullFailed(words)
                    self.progress.take(event)
        except requests.RequestException as error:
            if _timed_out(error):
                words = f"nothing new for {self._stall_s:g} s: {self.progress}"
                raise PullFailed(words, Cause.STALLED) from error
            raise unavailable(error) from error

    def stop(self) -> None:
        """Give up: the engine ends a pull that nobody reads. Does nothing once it has ended."""
        self._stopped = True
        if self._body is not None:
            with suppress(ValueError, RuntimeError, OSError):  # it has ended already
                self._body.shutdown()

    def _begin(self) -> requests.Response:
        # The SDK's own call waits for ever between two events, and cannot be stopped.
        api, name = self._api, self._name
        response = api.post(
            f"{api.base_url}/v{api.api_version}/images/create",
            params={"fromImage": name.repository, "tag": name.digest or name.tag},
            headers={"X-Registry-Auth": self._auth} if self._auth else {},
            stream=True,
            timeout=(_CONNECT_S, self._stall_s),
        )
        self._body = response.raw
        if self._stopped:
            self.stop()
        return response


async def pull(one: Pull, limiter: CapacityLimiter) -> None:
    """Read a pull to its end. Raises as `Pull.read`. Cancelled: the engine stops it."""
    try:
        await to_thread.run_sync(one.read, limiter=limiter, abandon_on_cancel=True)
    finally:
        one.stop()


def _events(response: requests.Response) -> Iterator[dict[str, Any]]:
    """What the engine says, an object a line; what is none of that is passed over."""
    rest = b""
    for piece in response.iter_content(chunk_size=None):
        *lines, rest = (rest + piece).split(b"\n")
        rest = rest[:_MAX_LINE_BYTES]
        yield from (event for line in lines if (event := _object(line)) is not None)
    if (event := _object(rest)) is not None:
        yield event


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _error(event: dict[str, Any]) -> str:
    detail = event.get("errorDetail")
    words = detail.get("message") if isinstance(detail, dict) else None
    return str(words or event.get("error") or "")[:_MAX_WORDS].strip()


def _message(response: requests.Response) -> str:
    event = _object(response.content)
    words = event.get("message", "") if event is not None else response.text
    return str(words)[:_MAX_WORDS].strip() or f"the engine said {response.status_code}"


def _timed_out(error: requests.RequestException) -> bool:
    """Whether a wait for the next event passed; inside a body it comes wrapped."""
    if isinstance(error, requests.Timeout):
        return True
    cause = error.args[0] if error.args else None
    return isinstance(cause, urllib3.exceptions.ReadTimeoutError)
