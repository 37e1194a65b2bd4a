"""Files in a leased sandbox, streamed through. Its guest does the work, with its user's rights."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import anyio

from sandboxd.execution.reattach import ask, ask_once, told
from sandboxd.guest.client import Guest
from sandboxd.guest.guest_files import Body, FileBody, GuestFiles
from sandboxd.guest.line import GuestLost
from sandboxd.leases.desk import Desk
from sandboxd.model.files import FileInfo, Unpacked

_ASK_S = 30.0
T = TypeVar("T")


class Files:
    """Acts on files of one daemon's sandboxes. Raises as `Commands` does, and `file_…`."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @asynccontextmanager
    async def open(self, lease_id: str, *, owner: str | None) -> AsyncIterator[GuestFiles]:
        """For streams: the guest's files for as long as they flow."""
        with self._desk.using(lease_id, owner=owner) as tenancy:
            try:
                async with self._desk.guest_of(tenancy) as guest:
                    yield guest.files
            except GuestLost as lost:
                raise await told(self._desk, tenancy, lost) from lost

    @asynccontextmanager
    async def read(
        self,
        lease_id: str,
        path: str | bytes,
        *,
        owner: str | None,
        offset: int,
        limit: int | None,
        user: str,
    ) -> AsyncIterator[FileBody]:
        """A file's bytes; see `GuestFiles.read`."""
        async with (
            self.open(lease_id, owner=owner) as files,
            files.read(path, offset=offset, limit=limit, user=user) as body,
        ):
            yield body

    async def write(
        self,
        lease_id: str,
        path: str | bytes,
        body: Body,
        *,
        owner: str | None,
        size: int | None,
        mode: int | None,
        user: str,
    ) -> tuple[FileInfo, bool]:
        """Write a whole file; says also whether it is new."""
        async with self.open(lease_id, owner=owner) as files:
            return await files.write(path, body, size=size, mode=mode, user=user)

    async def unpack(
        self,
        lease_id: str,
        path: str | bytes,
        body: Body,
        *,
        owner: str | None,
        size: int | None,
        gzip: bool,
        user: str,
    ) -> Unpacked:
        """Write what a tar holds below `path`."""
        async with self.open(lease_id, owner=owner) as files:
            return await files.unpack(path, body, size=size, gzip=gzip, user=user)

    async def stat(
        self, lease_id: str, path: str | bytes, *, owner: str | None, follow: bool, user: str
    ) -> FileInfo:
        """What stands at a path."""
        return await self._ask(
            lease_id, owner, lambda g: g.files.stat(path, follow=follow, user=user)
        )

    async def list(
        self,
        lease_id: str,
        path: str | bytes,
        *,
        owner: str | None,
        recursive: bool,
        user: str,
        limit: int,
        after: bytes,
    ) -> list[FileInfo]:
        """A page of a directory, in the order of names; see `GuestFiles.list_page`."""
        with anyio.fail_after(_ASK_S):
            async with (
                self.open(lease_id, owner=owner) as files,
                aclosing(
                    files.list_page(path, limit=limit, after=after, recursive=recursive, user=user)
                ) as found,
            ):
                return [info async for info in found]

    async def mkdir(
        self, lease_id: str, path: str, *, owner: str | None, mode: int, parents: bool, user: str
    ) -> FileInfo:
        """Make a directory."""
        return await self._act(
            lease_id, owner, lambda g: g.files.mkdir(path, mode=mode, parents=parents, user=user)
        )

    async def move(
        self,
        lease_id: str,
        source: str,
        target: str,
        *,
        owner: str | None,
        overwrite: bool,
        user: str,
    ) -> FileInfo:
        """Rename a file or directory."""
        return await self._act(
            lease_id,
            owner,
            lambda g: g.files.move(source, target, overwrite=overwrite, user=user),
        )

    async def delete(
        self, lease_id: str, path: str | bytes, *, owner: str | None, recursive: bool, user: str
    ) -> None:
        """Remove a file or directory."""
        await self._act(
            lease_id, owner, lambda g: g.files.delete(path, recursive=recursive, user=user)
        )

    async def _ask(
        self, lease_id: str, owner: str | None, act: Callable[[Guest], Awaitable[T]]
    ) -> T:
        with self._desk.using(lease_id, owner=owner) as tenancy, anyio.fail_after(_ASK_S):
            return await ask(self._desk, tenancy, act)

    async def _act(
        self, lease_id: str, owner: str | None, act: Callable[[Guest], Awaitable[T]]
    ) -> T:
        with self._desk.using(lease_id, owner=owner) as tenancy, anyio.fail_after(_ASK_S):
            return await ask_once(self._desk, tenancy, act)
