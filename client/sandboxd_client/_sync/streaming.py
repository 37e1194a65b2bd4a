# Generated from client/sandboxd_client/_async/streaming.py by scripts/unasync.py.
# Edit the source, then run the script.
"""Events of commands and cells, across as many connections as it takes: each once, in order."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol, TypeVar

from sandboxd.wire.http1_sync import ConnectionLost
from sandboxd_client._core.calls import Call
from sandboxd_client._core.ndjson import LineSplitter
from sandboxd_client._core.retries import Patience
from sandboxd_client._runtime import sio as runtime
from sandboxd_client._sync.api import Api, unreachable
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

    def __init__(self, api: Api) -> None:
        self._api = api
        self._patience: Patience | None = None

    def progress(self) -> None:
        """Something came of it."""
        self._patience = None

    def pause(self, error: SandboxdError) -> None:
        """Wait before the next try. Raises the error if there must be none."""
        if self._patience is None:
            self._patience = Patience(deadline=runtime.now() + self._api.patience_s)
        seconds = self._patience.pause(error, safe=True, now=runtime.now())
        if seconds is None:
            raise error
        runtime.sleep(seconds)


def json_lines(api: Api, call: Call) -> Generator[dict[str, Any], None, None]:
    """The objects of one NDJSON answer. Raises ConnectionLost where it is cut, and typed errors."""
    exchange = api.open(call)
    try:
        lines = LineSplitter()
        while chunk := exchange.response.next_chunk():
            for line in lines.feed(chunk):
                yield json.loads(line)
    except ValueError as error:
        raise Internal(f"the daemon's stream is not NDJSON: {error}") from error
    finally:
        exchange.close()


def follow_events(
    api: Api, *, first: Call | None, events_path: str, after: int = 0
) -> Generator[ExecEvent, None, None]:
    """The events of a command after the number `after`, until it ended; see `follow_numbered`."""
    return follow_numbered(
        api, first=first, events_path=events_path, after=after, read=event_from_json, last=Ended
    )


def follow_numbered(
    api: Api,
    *,
    first: Call | None,
    events_path: str,
    after: int,
    read: Callable[[Mapping[str, Any]], E | None],
    last: type[E],
) -> Generator[E, None, None]:
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
            for line in told:
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
            told.close()
        tries.pause(error)


def _attach(events_path: str, after: int) -> Call:
    return Call(
        method="GET",
        path=f"{events_path}?after={after}" if after else events_path,
        accept=NDJSON,
        safe=True,
        silence_s=STREAM_SILENCE_S,
    )
