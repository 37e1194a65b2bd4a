"""Sandboxes that were leased together, all or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self, overload

from sandboxd_client._async.api import AsyncApi
from sandboxd_client._async.ending import end_quietly
from sandboxd_client._async.sandbox import AsyncSandbox
from sandboxd_client._core.calls import Call, path_of
from sandboxd_client.records import Released


class AsyncGroup(Sequence[AsyncSandbox]):
    """A group: its sandboxes, in the order in which they were asked for.

    Holds no connection; leaving its `with` releases all of it.
    """

    def __init__(self, api: AsyncApi, group_id: str, sandboxes: Sequence[AsyncSandbox]) -> None:
        self._api = api
        self.id = group_id
        self._sandboxes = tuple(sandboxes)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {len(self)}>"

    def __len__(self) -> int:
        return len(self._sandboxes)

    def __iter__(self) -> Iterator[AsyncSandbox]:
        return iter(self._sandboxes)

    @overload
    def __getitem__(self, place: int) -> AsyncSandbox: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[AsyncSandbox]: ...

    def __getitem__(self, place: int | slice) -> AsyncSandbox | Sequence[AsyncSandbox]:
        return self._sandboxes[place]

    async def release(self) -> Released:
        """Release all of it. Success the first time and again."""
        call = Call(method="DELETE", path=path_of("groups", self.id), safe=True, ends=True)
        return Released.from_json(await self._api.json(call))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await end_quietly(repr(self), self.release)
