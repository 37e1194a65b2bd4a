"""A kernel as something to hold: its cells, what they show, its interrupts and restarts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, Unpack
from uuid import uuid4

from sandboxd_client._async.api import AsyncApi
from sandboxd_client._async.ending import end_quietly
from sandboxd_client._async.streaming import NDJSON, STREAM_SILENCE_S, follow_numbered
from sandboxd_client._core.calls import ROUND_S, Call, encode, path_of, silence_for
from sandboxd_client._core.fields import needed
from sandboxd_client._core.ids import fresh_id
from sandboxd_client._runtime import aio as runtime
from sandboxd_client.cells import Cell, CellEnded, CellEvent, cell_event_from_json
from sandboxd_client.errors import NotFound
from sandboxd_client.options import CellOptions, cell_body
from sandboxd_client.records import Completion, Inspection, KernelInfo

_START_S = 150.0  # of a kernel: what the daemon gives it to answer, and some


class AsyncKernel:
    """A kernel in a sandbox, by its id. Leaving its `with` ends it, as the sandbox's end does.

    Holds no connection. What its cells leave, variables and imports, is there for the next one.
    """

    def __init__(self, api: AsyncApi, *, sandbox_id: str, kernel_id: str) -> None:
        self._api = api
        self._parts = ("sandboxes", sandbox_id, "kernels", kernel_id)
        self.kernel_id = kernel_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kernel_id}>"

    async def execute(self, code: str, **options: Unpack[CellOptions]) -> Cell:
        """Run a cell to its end. Cells of one kernel run one after the other, in order.

        options: see CellOptions (`timeout_s cell_id allow_stdin stop_on_error store_history`).
        However it ended, that is a cell: an exception in it too, and a kernel that it killed.
        Raises the typed error when the sandbox or the call failed, KernelDied where the kernel was
        dead before, KernelBusy where 64 wait already. Never runs twice. Cancelled: the cell runs on
        under its deadline, and can be attached to by its `cell_id`.
        """
        cell_id = options.get("cell_id") or fresh_id("cell")
        call = Call(
            method="POST",
            path=path_of(*self._parts, "execute", query={"wait_s": ROUND_S}),
            body=encode(cell_body(code, options, cell_id=cell_id)),
            safe=True,
        )
        cell = Cell.from_json(await self._api.json(call))
        while cell.running:
            cell = await self._get(cell_id, wait_s=ROUND_S)
        return cell

    def stream(self, code: str, **options: Unpack[CellOptions]) -> AsyncGenerator[CellEvent, None]:
        """Run a cell and yield its events as they happen; the last one, CellEnded, has the cell.

        A cut line is attached to again, each event comes once. Raises the typed error where the
        sandbox failed: it never just stops. To leave early, use `aclosing`; the cell runs on.
        """
        cell_id = options.get("cell_id") or fresh_id("cell")
        call = Call(
            method="POST",
            path=path_of(*self._parts, "execute"),
            body=encode(cell_body(code, options, cell_id=cell_id)),
            accept=NDJSON,
            safe=True,
            silence_s=STREAM_SILENCE_S,
        )
        return self._follow(cell_id, first=call, after=0)

    def attach(self, cell_id: str, *, after: int = 0) -> AsyncGenerator[CellEvent, None]:
        """The events of a cell that was given before, after the number `after`, until its end.

        Of one that has ended, what is kept of them, what came late too. Raises NotFound.
        """
        return self._follow(cell_id, first=None, after=after)

    async def cell(self, cell_id: str, *, wait_s: float | None = None) -> Cell:
        """A cell that was given before, as it is now. Raises NotFound.

        wait_s: wait that long for its end; it is `running` if that was not enough.
        """
        deadline = None if wait_s is None else runtime.now() + wait_s
        while True:
            left = 0.0 if deadline is None else max(0.0, deadline - runtime.now())
            cell = await self._get(cell_id, wait_s=min(ROUND_S, left))
            if not cell.running or deadline is None or runtime.now() >= deadline:
                return cell

    # ------------------------------------------------------------------------------- the kernel

    async def info(self) -> KernelInfo:
        """How it stands now."""
        call = Call(method="GET", path=path_of(*self._parts), safe=True)
        return KernelInfo.from_json(await self._api.json(call))

    async def state(self) -> str:
        """`starting`, `idle`, `busy`, `restarting` or `dead`."""
        return (await self.info()).state

    async def interrupt(self) -> KernelInfo:
        """Interrupt what runs, and the programs that it waits for; nothing where nothing runs.

        A cell that goes on all the same is ended by a restart, in ten seconds, and says so. Not
        sent again if the answer is lost, as it might hit another cell: that raises ApiUnreachable.
        """
        return await self._act("interrupt")

    async def restart(self) -> KernelInfo:
        """Start it anew, a dead one too: its variables are gone, what runs ends `interrupted`,
        what waits `aborted`. Returns once it takes cells. Raises StartFailed.

        Not sent again if the answer is lost: that raises ApiUnreachable.
        """
        return await self._act("restart", silence_s=_START_S)

    async def input(self, text: str) -> None:
        """Answer the line of input that its cell asks for (`allow_stdin=True`, InputRequest).

        Raises Conflict if it asks for none. Not sent again if the answer is lost.
        """
        await self._act("input", {"text": text})

    async def complete(self, code: str, cursor: int | None = None) -> Completion:
        """What could stand at the cursor. cursor: in characters, the end of the code if None.

        Waits behind what runs, 30 s at most: raises Timeout then.
        """
        return Completion.from_json(await self._ask("complete", code, cursor))

    async def inspect(self, code: str, cursor: int | None = None, *, detail: int = 0) -> Inspection:
        """What is known of the name at the cursor. detail: 1 for its source as well.

        Waits as `complete` does.
        """
        told = await self._ask("inspect", code, cursor, detail=detail)
        return Inspection.from_json(told)

    async def shutdown(self) -> None:
        """End it and what it started. Idempotent: one that there is not has ended."""
        call = Call(method="DELETE", path=path_of(*self._parts), safe=True, ends=True)
        with suppress(NotFound):
            await self._api.json(call)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await end_quietly(repr(self), self.shutdown)

    # ------------------------------------------------------------------------------- inner parts

    async def _get(self, cell_id: str, *, wait_s: float) -> Cell:
        path = path_of(*self._parts, "cells", cell_id, query={"wait_s": wait_s or None})
        call = Call(method="GET", path=path, safe=True, silence_s=silence_for(wait_s))
        return Cell.from_json(await self._api.json(call))

    def _follow(
        self, cell_id: str, *, first: Call | None, after: int
    ) -> AsyncGenerator[CellEvent, None]:
        return follow_numbered(
            self._api,
            first=first,
            events_path=path_of(*self._parts, "cells", cell_id, "events"),
            after=after,
            read=cell_event_from_json,
            last=CellEnded,
        )

    async def _act(
        self, verb: str, body: Mapping[str, Any] | None = None, *, silence_s: float | None = None
    ) -> KernelInfo:
        call = Call(
            method="POST",
            path=path_of(*self._parts, verb),
            body=None if body is None else encode(body),
            silence_s=silence_s or silence_for(None),
            ends=silence_s is None,
        )
        return KernelInfo.from_json(await self._api.json(call))

    async def _ask(self, verb: str, code: str, cursor: int | None, **more: int) -> dict[str, Any]:
        body = {"code": code, "cursor": cursor, **more}
        path = path_of(*self._parts, verb)
        return await self._api.json(Call(method="POST", path=path, body=encode(body), safe=True))


async def start_kernel(api: AsyncApi, sandbox_id: str, given: Mapping[str, Any]) -> AsyncKernel:
    """Create or attach; returns once the kernel takes cells. given: what the body is made of."""
    body = {name: value for name, value in given.items() if value is not None}
    body.setdefault("kernel_id", str(uuid4()))  # Jupyter's own clients take no other form
    path = path_of("sandboxes", sandbox_id, "kernels")
    call = Call(method="POST", path=path, body=encode(body), safe=True, silence_s=_START_S)
    told = await api.json(call)
    return AsyncKernel(api, sandbox_id=sandbox_id, kernel_id=needed(told, "kernel_id"))
