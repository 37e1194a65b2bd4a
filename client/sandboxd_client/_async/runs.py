"""A run: the heartbeat that keeps a trainer's sandboxes while the trainer lives."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from sandboxd_client._async.api import AsyncApi
from sandboxd_client._async.ending import END_S, end_quietly
from sandboxd_client._core.calls import Call, encode, path_of
from sandboxd_client._core.heart import Heart
from sandboxd_client._runtime import aio as runtime
from sandboxd_client._sync.api import Api
from sandboxd_client.errors import SandboxdError
from sandboxd_client.records import Released, RunInfo

_SHARE = 3.0  # beats in a ttl: two may be missed


class AsyncRun:
    """Entered, it is heard of by the daemon until it is left; leaving it releases every sandbox
    that was leased with its `run_id`, also on an exception or a cancellation.

    It beats every third of its ttl from a thread of its own, and goes on through restarts of the
    daemon. If the daemon did not hear it for the whole ttl, the run is lost: its sandboxes have
    ended `run_lost` and mask, `lost` turns true, and further leases with its id raise Conflict.
    Nothing is cancelled: the block ends when it likes. Once it is left its name may be used again.
    """

    def __init__(self, api: AsyncApi, beating: Api, *, run_id: str, ttl_s: float) -> None:
        self.run_id = run_id
        self.ttl_s = ttl_s
        self._api = api
        self._beating = beating
        self._heart: Heart | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.run_id}>"

    @property
    def lost(self) -> bool:
        """Whether the daemon gave the run up."""
        return self._heart is not None and self._heart.lost

    @property
    def trouble(self) -> SandboxdError | None:
        """Why the last heartbeat failed; None while they go well."""
        return None if self._heart is None else self._heart.trouble

    async def info(self) -> RunInfo:
        """How the run stands. Raises NotFound before it was entered."""
        call = Call(method="GET", path=path_of("runs", self.run_id), safe=True)
        return RunInfo.from_json(await self._api.json(call))

    async def end(self) -> Released:
        """Release every sandbox of the run, and make its name free again."""
        call = Call(method="DELETE", path=path_of("runs", self.run_id), safe=True, ends=True)
        return Released.from_json(await self._api.json(call))

    async def __aenter__(self) -> Self:
        """Begin the run, or go on with one that is active.

        Raises Conflict where a run of that name is lost: whoever held it may still be there. `end`
        frees the name. Cancelled: what may have begun is ended.
        """
        if self._heart is not None:
            raise RuntimeError(f"{self!r} is entered already, or was: make another")
        every_s = self.ttl_s / _SHARE
        call = self._beat_call(silence_s=max(1.0, every_s))
        try:
            await self._api.json(call)
        except SandboxdError:
            raise
        except BaseException:
            await end_quietly(repr(self), self.end)
            raise
        self._heart = Heart(
            lambda: self._beating.json(call), every_s=every_s, name=f"sandboxd-run-{self.run_id}"
        )
        self._heart.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._heart is not None and self._heart.ours:  # a fork leaves the run to its parent
            await end_quietly(repr(self), self._stop)

    async def _stop(self) -> None:
        """A beat that came after the end would begin the run anew, so the heart stops first."""
        assert self._heart is not None
        await runtime.in_thread(self._heart.stop, END_S / 2)
        self._beating.close()
        await self.end()

    def _beat_call(self, *, silence_s: float) -> Call:
        return Call(
            method="PUT",
            path=path_of("runs", self.run_id, "heartbeat"),
            body=encode({"ttl_s": self.ttl_s}),
            safe=True,
            silence_s=silence_s,
        )
