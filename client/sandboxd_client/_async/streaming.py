"""Events of commands and cells, across as many connections as it takes: each once, in order."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Protocol, TypeVar

from sandboxd.wire.http1 import ConnectionLost
from sandboxd_client._async.api import AsyncApi, unreachable
from sandboxd_client._core.calls import Call
from sandboxd_client._core.ndjson import LineSplitter
from sandboxd_client._core.retries import Patience
from sandboxd_client._runtime import aio as runtime
from sandboxd_client.errors import ApiUnreachable, Internal, SandboxdError
from sandboxd_client.events import Ended, ExecEvent, event_from_json

NDJSON = "application/x-ndjson"
STREAM_SILENCE_S = 45.0  # a quiet stream says keepalive every 15 s: after three it is cut


class Numbered(Protocol):
    """An event of a stream that can be attached to again after its number."""

    @property
    def seq(self) -> int:
        """From 1 on; 0 for one without."""
        ...


E = TypeVar("E", bound=Numbered)


class Tries:
    """How long a stream is opened again: `patience_s` from the first failure after progress."""

    def __init__(self, api: AsyncApi) -> None:
        self._api = api
        self._patience: Patience | None = None

    def progress(self) -> None:
        """Something came of it."""
        self._patience = None

    async def pause(self, error: SandboxdError) -> None:
        """Wait before the next try. Raises the error if there must be none."""
        if self._patience is None:
            self._patience = Patience(deadline=runtime.now() + self._api.patience_s)
        seconds = self._patience.pause(error, safe=True, now=runtime.now())
        if seconds is None:
            raise error
        await runtime.sleep(seconds)


async def json_lines(api: AsyncApi, call: Call) -> AsyncGenerator[dict[str, Any], None]:
    """The objects of one NDJSON answer. Raises ConnectionLost where it is cut, and typed errors."""
    exchange = await api.open(call)
    try:
        lines = LineSplitter()
        while chunk := await exchange.response.next_chunk():
            for line in lines.feed(chunk):
                yield json.loads(line)
    except ValueError as error:
        raise Internal(f"the daemon's stream is not NDJSON: {error}") from error
    finally:
        await exchange.aclose()


def follow_events(
    api: AsyncApi, *, first: Call | None, events_path: str, after: int = 0
) -> AsyncGenerator[ExecEvent, None]:
    """The events of a command after the number `after`, until it ended; see `follow_numbered`."""
    return follow_numbered(
        api, first=first, events_path=events_path, after=after, read=event_from_json, last=Ended
    )


async def follow_numbered(
    api: AsyncApi,
    *,
    first: Call | None,
    events_path: str,
    after: int,
    read: Callable[[Mapping[str, Any]], E | None],
    last: type[E],
) -> AsyncGenerator[E, None]:
    """Numbered events after the number `after`, until the last one.

    first: starts what they tell of and streams it; sent again under its id as long as nothing came
    of it. Then, and if it is None, the stream is attached to by `events_path`. read: an event from
    its line, None for none. last: the kind of event that ends it. Raises typed errors;
    ApiUnreachable once the stream could not be had again for `patience_s` without any progress.
    """
    tries = Tries(api)
    while True:
        call = first if first is not None and after == 0 else _attach(events_path, after)
        told = json_lines(api, call)
        try:
            async for line in told:
                tries.progress()
                event = read(line)
                if event is None or 0 < event.seq <= after:
                    continue
                after = event.seq or after
                yield event
                if isinstance(event, last):
                    return
            error: SandboxdError = ApiUnreachable("the stream was cut", retry_safe=False)
        except ConnectionLost as lost:
            error = unreachable(lost)
        except SandboxdError as problem:
            error = problem
        finally:
            await told.aclose()
        await tries.pause(error)


def _attach(events_path: str, after: int) -> Call:
    return Call(
        method="GET",
        path=f"{events_path}?after={after}" if after else events_path,
        accept=NDJSON,
        safe=True,
        silence_s=STREAM_SILENCE_S,
    )
