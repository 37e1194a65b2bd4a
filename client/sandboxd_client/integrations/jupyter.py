"""Jupyter's kernels in sandboxes: the kernel provisioner `sandboxd`.

What starts kernels through `jupyter_client` (Jupyter Server, nbclient, papermill, consoles) gets a
leased sandbox for each, with the kernel inside and its five sockets on 127.0.0.1.
"""

from __future__ import annotations

import atexit
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import anyio
from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase
from traitlets import Dict, Float, Unicode

from sandboxd_client.errors import SandboxdError
from sandboxd_client.integrations.jupyter_bridge import Desk
from sandboxd_client.integrations.jupyter_home import Home, Order
from sandboxd_client.integrations.side_loop import SideLoop

_POLL_S = 0.05
_AT_EXIT_S = 10.0
_PORTS = ("shell_port", "iopub_port", "stdin_port", "hb_port", "control_port")
_KILLED, _TERMINATED = -int(signal.Signals(9)), -int(signal.SIGTERM)


class SandboxProvisioner(KernelProvisionerBase):
    """Starts a kernel in a sandbox of its own, and gives that back when the kernel is shut down.

    Its settings stand in a kernelspec's `metadata.kernel_provisioner.config`. While this process
    lives the lease is kept; once it is gone the sandbox ends within a minute.
    """

    url = Unicode("", help="The daemon's address; else SANDBOXD_API_URL.").tag(config=True)
    key = Unicode("", help="Its key; else SANDBOXD_API_KEY.").tag(config=True)
    template = Unicode("python", help="What to lease.").tag(config=True)
    kernel = Unicode("", help="The kernelspec inside; else the one of the same name.").tag(
        config=True
    )
    env = Dict(help="Variables of the kernel.").tag(config=True)
    lease = Dict(help="More of a lease's body: `resources`, `network`, …").tag(config=True)
    wait_timeout_s = Float(60.0, help="How long to queue for a sandbox.").tag(config=True)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._loop: SideLoop | None = None
        self._home: Home | None = None
        self._ended: int | None = None  # by a signal of Jupyter's

    @property
    def has_process(self) -> bool:
        """Whether there is a kernel."""
        return self._home is not None

    async def poll(self) -> int | None:
        """None while it runs, else how it ended."""
        if self._home is None:
            return 0
        if self._ended is None and not self._home.alive:
            return 1
        return self._ended

    async def wait(self) -> int | None:
        """Wait for its end; how it ended."""
        while (code := await self.poll()) is None:  # noqa: ASYNC110 - for no event of this loop
            await anyio.sleep(_POLL_S)  # it ends in another thread, or in a sandbox
        return code

    async def send_signal(self, signum: int) -> None:
        """Interrupt it, or end it; other signals are nothing to it.

        An interrupt that does not get through is logged: Jupyter begins a shutdown with one.
        """
        if signum == signal.SIGINT and self._home is not None:
            try:
                await self._there(self._home.interrupt)
            except SandboxdError as error:
                self.log.warning("the kernel could not be interrupted: %s", error)
        elif signum == signal.SIGTERM:
            await self.terminate()
        elif signum == -_KILLED:
            await self.kill()

    async def kill(self, restart: bool = False) -> None:  # noqa: FBT001, FBT002 - Jupyter's
        """It counts as dead from now on: the restart or the clean-up that follows sees to it."""
        self._end(_KILLED)

    async def terminate(self, restart: bool = False) -> None:  # noqa: FBT001, FBT002 - Jupyter's
        """The same: what it could be asked kindly it was asked before."""
        self._end(_TERMINATED)

    def _end(self, code: int) -> None:
        if self._home is not None and self._ended is None:
            self._ended = code

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Nothing of this machine's environment goes into a sandbox."""
        return {**kwargs, "cmd": [], "env": {}}

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Lease a sandbox and start its kernel; in one that is there already, start it anew.

        Raises the SDK's typed errors.
        """
        if self._home is not None and self._home.over:
            await self._leave()
        if self._home is None:
            await self._enter()
        else:
            await self._there(self._home.restart)
        assert self._home is not None
        self._ended = None
        info = cast("KernelConnectionInfo", {**self._home.ports, **self._secret()})
        self.connection_info = info
        return info

    async def _enter(self) -> None:
        secret = self._secret()
        manager: Any = self.parent
        order = Order(
            url=self.url or None,
            key=self.key or None,
            template=self.template,
            kernel=self.kernel or getattr(manager, "kernel_name", "") or "python3",
            env={str(name): str(value) for name, value in self.env.items()},
            lease={"wait_timeout_s": self.wait_timeout_s, **self.lease},
            desk=Desk(
                ip=str(secret["ip"]),
                # Clients of a kernel that is started anew know no others.
                ports={name: port for name in _PORTS if (port := getattr(manager, name, 0))},
                secret=secret["key"],
                session=str(manager.session.session),
            ),
        )
        self._loop = SideLoop()
        try:
            self._home = await self._loop.start(Home.live, order)
        except BaseException:
            await self._leave()
            raise
        atexit.register(self._leave_at_exit)

    def _secret(self) -> dict[str, Any]:
        """What a manager has chosen of the connection: who may speak to the sockets."""
        manager: Any = self.parent
        session = manager.session
        return {
            "ip": manager.ip or "127.0.0.1",
            "key": session.key,
            "signature_scheme": session.signature_scheme,
            "transport": "tcp",
        }

    async def cleanup(self, restart: bool = False) -> None:  # noqa: FBT001, FBT002 - Jupyter's
        """Give the sandbox back, unless it is for a restart."""
        if not restart:
            await self._leave()

    async def _leave(self) -> None:
        home, self._home = self._home, None
        loop, self._loop = self._loop, None
        atexit.unregister(self._leave_at_exit)
        if loop is None:
            return
        if home is not None:
            await loop.call(home.leave)
        await loop.close()

    def _leave_at_exit(self) -> None:
        """A program that ends without a word gives its sandbox back too; else it is lost, later."""
        if self._home is not None and self._loop is not None:
            with suppress(Exception):
                self._loop.call_within(self._home.leave, seconds=_AT_EXIT_S)

    async def _there(self, act: Callable[[], Awaitable[None]]) -> None:
        """Do it where the bridge lives: Jupyter's own loops come and go."""
        assert self._loop is not None
        await self._loop.call(act)
