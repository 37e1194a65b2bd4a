"""The kernels of all leases: started, found, given cells. What doors call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import structlog
from anyio import CapacityLimiter, to_thread
from anyio.abc import TaskGroup, TaskStatus

from sandboxd.clock import Clock
from sandboxd.errors import SandboxdError
from sandboxd.execution.commands import KEEPALIVE_S
from sandboxd.kernels.cells import CellRun, Event
from sandboxd.kernels.early.proofs import Way, proven_before
from sandboxd.kernels.jupyter.channels import Channels
from sandboxd.kernels.live import LiveKernel
from sandboxd.kernels.processes import Process, Processes
from sandboxd.kernels.specs import KernelSpec
from sandboxd.kernels.text import readable
from sandboxd.leases.desk import Desk
from sandboxd.leases.tenancy import Tenancy
from sandboxd.model.ids import new_kernel_id
from sandboxd.model.kernel import Cell, CellOrder, Kernel, KernelOrder, KernelState
from sandboxd.telemetry.metrics import Metrics
from sandboxd.turns import Turns
from sandboxd.wire.codes import ErrorCode

log = structlog.get_logger(__name__)

_MOST = 32  # of one lease
_BESIDE_BYTES = 1 << 17  # of outputs


class Kernels:
    """Every call raises as those of `Commands` do, and `not_found` for an unknown kernel."""

    def __init__(self, desk: Desk, *, clock: Clock, metrics: Metrics) -> None:
        self._desk = desk
        self._metrics = metrics
        self._processes = Processes(desk, clock=clock)
        self._of: dict[str, dict[str, LiveKernel]] = {}  # by lease
        self._proven: dict[str, set[Way]] = {}  # by lease: how kernels were started there
        self._looking = Turns()
        self._readers = CapacityLimiter(1)
        self._tasks: TaskGroup | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Own the kernels' tasks until cancelled; the kernels live on."""
        try:
            async with anyio.create_task_group() as self._tasks:
                task_status.started()
                await anyio.sleep_forever()
        finally:
            self._tasks = None

    async def start(self, lease_id: str, order: KernelOrder, *, owner: str | None) -> Kernel:
        """Create or attach; returns once it takes cells. A new one is one that ran before the
        lease, if there is any of that spec that nobody has taken; without a `kernel_id` it keeps
        its own. Raises `start_failed`, and `conflict` where the lease has too many, or
        one of that id and another spec.
        """
        with self._desk.using(lease_id, owner=owner) as tenancy:
            kernels = await self._kernels(tenancy)
            kernel = kernels.get(order.kernel_id) or _waiting(kernels, spec=order.spec)
            if kernel is not None and kernel.order.spec != order.spec:
                raise SandboxdError(
                    ErrorCode.CONFLICT,
                    f"kernel_id {order.kernel_id!r} is a kernel {kernel.order.spec!r}",
                )
            if kernel is not None and kernel.waits:
                self._take(kernels, kernel, order)
            elif kernel is None:
                if len(kernels) >= _MOST:
                    raise SandboxdError(
                        ErrorCode.CONFLICT, f"a sandbox has at most {_MOST} kernels: end one"
                    )
                kernel = self._open(tenancy, _named(order, new_kernel_id()))
            await kernel.ready.wait()
            if kernel.death is not None:
                raise kernel.died()
            return kernel.shown()

    async def list(self, lease_id: str, *, owner: str | None) -> list[Kernel]:
        """All kernels of a lease."""
        tenancy = self._desk.look_at(lease_id, owner=owner)
        return [kernel.shown() for kernel in (await self._kernels(tenancy)).values()]

    async def look(self, lease_id: str, kernel_id: str, *, owner: str | None) -> Kernel:
        """A kernel as it is now."""
        tenancy = self._desk.look_at(lease_id, owner=owner)
        return (await self._known(tenancy, kernel_id)).shown()

    async def submit(
        self, lease_id: str, kernel_id: str, order: CellOrder, *, owner: str | None
    ) -> Cell:
        """Give it a cell without waiting for its end; the cell as it is now. Same `cell_id`: the
        same cell. Raises `conflict`, `kernel_busy`, `kernel_died`.
        """
        with self._desk.using(lease_id, owner=owner) as tenancy:
            kernel = await self._find(tenancy, kernel_id)
            return await self._shown(kernel.submit(order).run)

    async def _shown(self, run: CellRun) -> Cell:
        """The cell as it is now; a long text is made readable beside the event loop."""
        if run.outputs.size <= _BESIDE_BYTES:
            return run.cell()
        cell = run.cell(text=str)
        text = await to_thread.run_sync(readable, cell.text, limiter=self._readers)
        return replace(cell, text=text)

    async def look_cell(
        self, lease_id: str, kernel_id: str, cell_id: str, *, owner: str | None, wait_s: float = 0
    ) -> Cell:
        """A cell as it is, once it ended or `wait_s` passed."""
        tenancy = self._desk.look_at(lease_id, owner=owner)
        ticket = (await self._find(tenancy, kernel_id)).find(cell_id)
        if wait_s > 0:
            with tenancy.call(), anyio.move_on_after(wait_s):
                await ticket.ended.wait()
        if ticket.error is not None:
            raise tenancy.over_error() if tenancy.lease.over else ticket.error
        return await self._shown(ticket.run)

    @asynccontextmanager
    async def _used(
        self, lease_id: str, kernel_id: str, *, owner: str | None
    ) -> AsyncGenerator[LiveKernel, None]:
        with self._desk.using(lease_id, owner=owner) as tenancy:
            yield await self._find(tenancy, kernel_id)

    async def events(
        self, lease_id: str, kernel_id: str, cell_id: str, *, owner: str | None, after: int = 0
    ) -> AsyncGenerator[Event | None, None]:
        """Events of a cell after a number, live, until it has ended; None after a silence."""
        async with self._used(lease_id, kernel_id, owner=owner) as kernel:
            ticket = kernel.find(cell_id)
            while True:
                changed = kernel.changed
                events = ticket.run.journal.after(after)
                for event in events:
                    after = event["seq"]
                    yield event
                if events:
                    continue
                if ticket.ended.is_set():
                    return
                with anyio.move_on_after(KEEPALIVE_S):
                    await changed.wait()
                    continue
                yield None

    async def interrupt(self, lease_id: str, kernel_id: str, *, owner: str | None) -> Kernel:
        """Interrupt what runs; see `LiveKernel.interrupt`."""
        async with self._used(lease_id, kernel_id, owner=owner) as kernel:
            await kernel.interrupt()
            return kernel.shown()

    async def restart(self, lease_id: str, kernel_id: str, *, owner: str | None) -> Kernel:
        """Start it anew; see `LiveKernel.restart`."""
        async with self._used(lease_id, kernel_id, owner=owner) as kernel:
            await kernel.restart()
            return kernel.shown()

    async def shut_down(self, lease_id: str, kernel_id: str, *, owner: str | None) -> None:
        """End it, with all that it started; see `LiveKernel.shut_down`."""
        async with self._used(lease_id, kernel_id, owner=owner) as kernel:
            await kernel.shut_down()

    async def answer(self, lease_id: str, kernel_id: str, text: str, *, owner: str | None) -> None:
        """Answer the input that its cell asks for."""
        async with self._used(lease_id, kernel_id, owner=owner) as kernel:
            await kernel.answer(text)

    async def ask(
        self,
        lease_id: str,
        kernel_id: str,
        kind: str,
        content: dict[str, Any],
        *,
        owner: str | None,
        within_s: float = 30.0,
    ) -> dict[str, Any]:
        """What it answers to a request that changes nothing, like `complete_request`."""
        async with self._used(lease_id, kernel_id, owner=owner) as kernel:
            reply = await kernel.ask(kind, content, within_s=within_s)
            return dict(reply.content)

    async def specs(self, lease_id: str, *, owner: str | None) -> Sequence[KernelSpec]:
        """The kernelspecs of the sandbox."""
        with self._desk.using(lease_id, owner=owner) as tenancy:
            return await self._processes.specs(tenancy)

    @asynccontextmanager
    async def channels(
        self,
        lease_id: str,
        kernel_id: str,
        *,
        owner: str | None,
        session: str,
        heard: str | None = None,
    ) -> AsyncGenerator[Channels, None]:
        """A Jupyter client's place at a kernel. session: its name, under which it may come back.
        heard: see Channels.

        No use of the sandbox by itself: what it sends is, and what that has the kernel do.
        """
        tenancy = self._desk.look_at(lease_id, owner=owner)
        kernel = await self._find(tenancy, kernel_id)
        visit = kernel.visits.enter(session)
        try:
            yield Channels(self._desk, kernel, visit, heard=heard)
        finally:
            kernel.visits.leave(visit)

    # Which there are.

    async def _known(self, tenancy: Tenancy, kernel_id: str) -> LiveKernel:
        kernel = (await self._kernels(tenancy)).get(kernel_id)
        if kernel is None:
            raise SandboxdError(ErrorCode.NOT_FOUND, f"there is no kernel {kernel_id!r}")
        return kernel

    async def _find(self, tenancy: Tenancy, kernel_id: str) -> LiveKernel:
        kernel = await self._known(tenancy, kernel_id)
        if kernel.waits:
            kernel.take(kernel.order)
        if kernel.state is KernelState.STARTING:
            await kernel.ready.wait()
        return kernel

    async def _kernels(self, tenancy: Tenancy) -> dict[str, LiveKernel]:
        """The lease's kernels; the first time, those that its guest has already."""
        lease_id = tenancy.lease.id
        known = self._of.get(lease_id)
        if known is not None:
            return known
        async with self._looking.alone(lease_id):
            if lease_id not in self._of:
                found = await self._processes.all(tenancy)
                self._of[lease_id] = {}
                self._proven[lease_id] = proven_before(tenancy.lease.terms)
                assert self._tasks is not None
                self._tasks.start_soon(self._forget, tenancy, name=f"kernels-of-{lease_id}")
                for past in found.values():
                    self._open(tenancy, _order_of(past[-1]), past)
        return self._of[lease_id]

    @staticmethod
    def _take(kernels: dict[str, LiveKernel], kernel: LiveKernel, order: KernelOrder) -> None:
        """Whoever wants it first may say what it is called."""
        kernel_id = kernel.order.kernel_id
        del kernels[kernel_id]
        kernel.take(_named(order, kernel_id))
        kernels[kernel.order.kernel_id] = kernel

    def _open(
        self, tenancy: Tenancy, order: KernelOrder, past: Sequence[Process] = ()
    ) -> LiveKernel:
        assert self._tasks is not None
        kernel = LiveKernel(
            order,
            tenancy=tenancy,
            processes=self._processes,
            metrics=self._metrics,
            proven=self._proven[tenancy.lease.id],
            waits=bool(past) and past[-1].waits,
        )
        self._of[tenancy.lease.id][order.kernel_id] = kernel
        name = f"kernel-{order.kernel_id}"
        self._tasks.start_soon(self._keep, tenancy, kernel, past, name=name)
        return kernel

    async def _keep(self, tenancy: Tenancy, kernel: LiveKernel, past: Sequence[Process]) -> None:
        """Until it is shut down or its lease is over."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(tenancy.end_with, tasks.cancel_scope)
                await kernel.run(past)
                tasks.cancel_scope.cancel()
        except Exception:  # what one kernel brings about ends no other, nor the daemon
            log.exception("kernel.broken", kernel=kernel.order.kernel_id)
        finally:
            self._of.get(tenancy.lease.id, {}).pop(kernel.order.kernel_id, None)

    async def _forget(self, tenancy: Tenancy) -> None:
        await tenancy.recorded.wait()
        self._of.pop(tenancy.lease.id, None)
        self._proven.pop(tenancy.lease.id, None)


def _waiting(kernels: Mapping[str, LiveKernel], *, spec: str) -> LiveKernel | None:
    """One that nobody has taken yet."""
    return next((k for k in kernels.values() if k.waits and k.order.spec == spec), None)


def _named(order: KernelOrder, kernel_id: str) -> KernelOrder:
    return order if order.kernel_id else replace(order, kernel_id=kernel_id)


def _order_of(process: Process) -> KernelOrder:
    return KernelOrder(kernel_id=process.kernel_id, spec=process.spec, cwd=process.cwd)
