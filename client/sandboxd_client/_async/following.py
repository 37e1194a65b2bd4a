"""What happens in the installation, across as many connections as it takes."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

from sandboxd.wire.http1 import ConnectionLost
from sandboxd_client._async.api import AsyncApi, unreachable
from sandboxd_client._async.streaming import STREAM_SILENCE_S, Tries
from sandboxd_client._core.calls import Call, path_of
from sandboxd_client._core.sse import BlockSplitter, ServerSent
from sandboxd_client.errors import ApiUnreachable, Internal, SandboxdError
from sandboxd_client.records import Event


async def follow(
    api: AsyncApi, *, run_id: str | None, after: str | None
) -> AsyncGenerator[Event, None]:
    """Events for ever, each once. Raises typed errors; ApiUnreachable once the stream could not be
    had again for `patience_s`.
    """
    tries = Tries(api)
    while True:
        told = _blocks(api, run_id=run_id, after=after)
        try:
            async for block in told:
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
            await told.aclose()
        await tries.pause(error)


async def _blocks(
    api: AsyncApi, *, run_id: str | None, after: str | None
) -> AsyncGenerator[ServerSent, None]:
    """The blocks of one connection. Raises ConnectionLost, ValueError and typed errors."""
    call = Call(
        method="GET",
        path=path_of("events", query={"run_id": run_id, "after": after}),
        accept="text/event-stream",
        safe=True,
        silence_s=STREAM_SILENCE_S,
    )
    exchange = await api.open(call)
    try:
        splitter = BlockSplitter()
        while chunk := await exchange.response.next_chunk():
            for block in splitter.feed(chunk):
                yield block
    finally:
        await exchange.aclose()
