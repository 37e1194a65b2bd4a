# Generated from client/sandboxd_client/_async/following.py by scripts/unasync.py.
# Edit the source, then run the script.
"""What happens in the installation, across as many connections as it takes."""

from __future__ import annotations

import json
from collections.abc import Generator

from sandboxd.wire.http1_sync import ConnectionLost
from sandboxd_client._core.calls import Call, path_of
from sandboxd_client._core.sse import BlockSplitter, ServerSent
from sandboxd_client._sync.api import Api, unreachable
from sandboxd_client._sync.streaming import STREAM_SILENCE_S, Tries
from sandboxd_client.errors import ApiUnreachable, Internal, SandboxdError
from sandboxd_client.records import Event


def follow(api: Api, *, run_id: str | None, after: str | None) -> Generator[Event, None, None]:
    """Events for ever, each once. Raises typed errors; ApiUnreachable once the stream could not be
    had again for `patience_s`.
    """
    tries = Tries(api)
    while True:
        told = _blocks(api, run_id=run_id, after=after)
        try:
            for block in told:
                tries.progress()
                after = block.id or after
                if block.data:
                    facts = json.loads(block.data)
                    yield Event.from_json({**facts, "id": block.id, "type": block.event})
            error: SandboxdError = ApiUnreachable("the stream was cut", retry_safe=False)
        except ValueError as broken:
            raise Internal(f"the daemon's events are not what they should be: {broken}") from broken
        except ConnectionLost as lost:
            error = unreachable(lost)
        except SandboxdError as problem:
            error = problem
        finally:
            told.close()
        tries.pause(error)


def _blocks(
    api: Api, *, run_id: str | None, after: str | None
) -> Generator[ServerSent, None, None]:
    """The blocks of one connection. Raises ConnectionLost, ValueError and typed errors."""
    call = Call(
        method="GET",
        path=path_of("events", query={"run_id": run_id, "after": after}),
        accept="text/event-stream",
        safe=True,
        silence_s=STREAM_SILENCE_S,
    )
    exchange = api.open(call)
    try:
        splitter = BlockSplitter()
        while chunk := exchange.response.next_chunk():
            yield from splitter.feed(chunk)
    finally:
        exchange.close()
