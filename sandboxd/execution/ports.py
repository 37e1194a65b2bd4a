"""Connections to ports inside a leased sandbox. Knows nothing of what is spoken on them."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio

from sandboxd.errors import SandboxdError
from sandboxd.execution.reattach import ask, broken
from sandboxd.guest.line import GuestLost
from sandboxd.guest.ports import GuestStream
from sandboxd.leases.desk import Desk
from sandboxd.leases.tenancy import Tenancy
from sandboxd.wire.codes import ErrorCode, Fault

_CONNECT_S = 10.0  # the guest itself gives up after 5
_FATE_S = 3.0
_AGAIN_S = 0.5
_SHARE_OF_DESCRIPTORS = 0.2  # callers have three quarters; the store, boxes and commands the rest


class OpenPort:
    """One connection to a port."""

    def __init__(self, stream: GuestStream, *, desk: Desk, tenancy: Tenancy) -> None:
        self.stream = stream
        self._desk = desk
        self._tenancy = tenancy

    @property
    def template(self) -> str:
        """The name of the sandbox's template."""
        return self._tenancy.pool.template.name

    async def until_over(self) -> SandboxdError:
        """Wait for the end of the lease; what calls on it are answered from then on."""
        await self._tenancy.recorded.wait()
        return self._tenancy.over_error()

    async def fate(self) -> SandboxdError | None:
        """Why the stream ended: None if by the program inside, else what became of the sandbox.

        The guest ends streams as it dies, which looks alike from here. Takes 3 s at most.
        """
        try:
            with anyio.fail_after(_FATE_S):
                await ask(self._desk, self._tenancy, lambda guest: guest.hello())
        except SandboxdError as error:
            return error
        except TimeoutError:
            return broken(self._tenancy, GuestLost("the guest does not answer", sent=True))
        return None


class Ports:
    """Opens them, a bounded number at once."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._open = 0

    @asynccontextmanager
    async def open(self, lease_id: str, port: int, *, owner: str | None) -> AsyncIterator[OpenPort]:
        """Connect, for the length of the `with`, which is use of the sandbox.

        Raises as `Commands` does, `capacity`, and `conflict` with status 502 and `details.reason`
        `refused` where nobody listens: certainly without effect, so it may be tried again.
        `timeout` where who listens does not take the connection.
        """
        with self._desk.using(lease_id, owner=owner) as tenancy, self._place():
            stream = await self._connect(tenancy, port)
            try:
                yield OpenPort(stream, desk=self._desk, tenancy=tenancy)
            finally:
                with anyio.CancelScope(shield=True):
                    await stream.aclose()

    async def _connect(self, tenancy: Tenancy, port: int) -> GuestStream:
        try:
            async with self._desk.guest_of(tenancy) as guest:
                with anyio.fail_after(_CONNECT_S):
                    return await guest.open_port(port)
        except GuestLost as lost:
            raise broken(tenancy, lost) from lost
        except SandboxdError as error:
            raise _refusal(error, port) from error

    @contextmanager
    def _place(self) -> Iterator[None]:
        if self._open >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] * _SHARE_OF_DESCRIPTORS:
            raise SandboxdError(
                ErrorCode.CAPACITY,
                "too many connections into sandboxes are open; raise the limit of open files",
                retry_after_s=1,
            )
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1


def _refusal(error: SandboxdError, port: int) -> SandboxdError:
    """What the guest says, as the caller should hear it: the program inside is the agent's."""
    reason = error.details.get("reason") if error.code is ErrorCode.CONFLICT else None
    if reason == "refused":
        return SandboxdError(
            ErrorCode.CONFLICT,
            f"nobody listens on port {port} inside, or not yet",
            fault=Fault.AGENT,
            mask=False,
            retry_safe=True,
            retry_after_s=_AGAIN_S,
            sandbox_id=error.sandbox_id,
            details={"reason": "refused", "port": port},
            status=502,
        )
    if reason == "timeout":
        return SandboxdError(
            ErrorCode.TIMEOUT,
            f"who listens on port {port} inside does not take the connection",
            fault=Fault.AGENT,
            mask=False,
            retry_safe=True,
            retry_after_s=_AGAIN_S,
            sandbox_id=error.sandbox_id,
            details={"reason": "timeout", "port": port},
        )
    return error
