"""A sandbox with one kernel, kept for as long as its Jupyter lives, and the bridge to it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskStatus

from sandboxd_client import AsyncKernel, AsyncSandbox, AsyncSandboxd, SandboxdError
from sandboxd_client._core.calls import path_of
from sandboxd_client._core.ids import fresh_id
from sandboxd_client._core.settings import key_of
from sandboxd_client.errors import KernelDied, LeaseEnded, NotFound, SandboxLost
from sandboxd_client.integrations.jupyter_bridge import Bridge, Desk

_TTL_S = 60.0  # a Jupyter that is gone for so long loses its sandbox
_RENEW_S = 300.0
_DEAD = (KernelDied, LeaseEnded, NotFound, SandboxLost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to lease, and how to be reached. lease: more of its body."""

    url: str | None
    key: str | None = field(repr=False)
    template: str
    kernel: str
    env: Mapping[str, str]
    lease: Mapping[str, Any]
    desk: Desk


class Home:
    """See the module. Its calls must come from the loop that it lives on."""

    def __init__(self, sandbox: AsyncSandbox, kernel: AsyncKernel, bridge: Bridge) -> None:
        self._sandbox = sandbox
        self._kernel = kernel
        self._bridge = bridge
        self._leaving = anyio.Event()
        self._gone = anyio.Event()

    @classmethod
    async def live(cls, order: Order, *, task_status: TaskStatus[Home]) -> None:
        """Lease, start the kernel, and be its bridge until told to leave; then release."""
        run_id = fresh_id("jupyter")
        lease = {"idle_timeout_s": 0, **order.lease, "run_id": run_id}
        home: Home | None = None
        try:
            async with (
                AsyncSandboxd(order.url, key=order.key) as client,
                client.run(run_id, ttl_s=_TTL_S),
                client.lease(order.template, **lease) as sandbox,
            ):
                kernel = await sandbox.kernel(order.kernel, env=order.env)
                place = path_of("sandboxes", sandbox.id, "jupyter", "api", "kernels")
                url = f"{client.url}{place}/{kernel.kernel_id}/channels"
                bridge = Bridge(url, key=key_of(order.key), desk=order.desk)
                home = cls(sandbox, kernel, bridge)
                async with anyio.create_task_group() as tasks:
                    await tasks.start(bridge.run)
                    tasks.start_soon(home._renew, name="jupyter-renew")
                    task_status.started(home)
                    await home._leaving.wait()
                    tasks.cancel_scope.cancel()
        finally:
            if home is not None:
                home._gone.set()

    @property
    def ports(self) -> dict[str, int]:
        """The sockets' ports, as a connection file names them."""
        return self._bridge.ports

    @property
    def alive(self) -> bool:
        """Whether the kernel runs."""
        return self._bridge.alive and not self.over

    @property
    def over(self) -> bool:
        """Whether the sandbox is gone: the kernel cannot be started anew."""
        return self._bridge.over or self._gone.is_set()

    async def interrupt(self) -> None:
        """Interrupt what runs; nothing where it died."""
        with suppress(*_DEAD):
            await self._kernel.interrupt()

    async def restart(self) -> None:
        """Start the kernel anew, a dead one too."""
        await self._kernel.restart()
        self._bridge.revive()

    async def leave(self) -> None:
        """Give the sandbox back; returns once that is done."""
        self._leaving.set()
        await self._gone.wait()

    async def _renew(self) -> None:
        """Notebooks are open for days: the lease goes on for as long as anybody holds it."""
        while not self.over:
            await anyio.sleep(_RENEW_S)
            try:
                await self._sandbox.renew()
            except SandboxdError:
                continue  # the next time, or `over` says that it is
