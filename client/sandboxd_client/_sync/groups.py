# Generated from client/sandboxd_client/_async/groups.py by scripts/unasync.py.
# Edit the source, then run the script.
"""Sandboxes that were leased together, all or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self, overload

from sandboxd_client._core.calls import Call, path_of
from sandboxd_client._sync.api import Api
from sandboxd_client._sync.ending import end_quietly
from sandboxd_client._sync.sandbox import Sandbox
from sandboxd_client.records import Released


class Group(Sequence[Sandbox]):
    """A group: its sandboxes, in the order in which they were asked for.

    Holds no connection; leaving its `with` releases all of it.
    """

    def __init__(self, api: Api, group_id: str, sandboxes: Sequence[Sandbox]) -> None:
        self._api = api
        self.id = group_id
        self._sandboxes = tuple(sandboxes)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {len(self)}>"

    def __len__(self) -> int:
        return len(self._sandboxes)

    def __iter__(self) -> Iterator[Sandbox]:
        return iter(self._sandboxes)

    @overload
    def __getitem__(self, place: int) -> Sandbox: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Sandbox]: ...

    def __getitem__(self, place: int | slice) -> Sandbox | Sequence[Sandbox]:
        return self._sandboxes[place]

    def release(self) -> Released:
        """Release all of it. Success the first time and again."""
        call = Call(method="DELETE", path=path_of("groups", self.id), safe=True, ends=True)
        return Released.from_json(self._api.json(call))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end_quietly(repr(self), self.release)
