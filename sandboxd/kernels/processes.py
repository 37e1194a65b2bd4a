"""Kernel processes in a box: found by their notes, started anew, interrupted, killed, made ready.

A kernel that is restarted is another process under another name; the guest knows nothing of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import structlog

from sandboxd.clock import Clock
from sandboxd.errors import SandboxdError
from sandboxd.execution.reattach import ask, ask_once
from sandboxd.guest.client import Guest
from sandboxd.guest.kernels import Changes, GuestKernel, KernelStart, Missing
from sandboxd.kernels.early import binding
from sandboxd.kernels.messages import Message
from sandboxd.kernels.specs import KernelSpec, find_spec, folders, list_specs
from sandboxd.kernels.talk import READY, Talk
from sandboxd.leases.desk import Desk
from sandboxd.leases.tenancy import Tenancy
from sandboxd.model.claim import Claim
from sandboxd.model.kernel import KernelOrder
from sandboxd.wire.codes import ErrorCode

log = structlog.get_logger(__name__)

_START_S = 30.0
_KILL_S = 15.0
_PREPARE_S = 30.0
READY_S = 120.0
_ASK_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of a kernel. generation: rises with each restart.

    early: it was started before the lease, by what was known then. waits: nobody has taken it yet.
    """

    guest: GuestKernel = field(repr=False)
    kernel_id: str
    spec: str
    cwd: str
    generation: int
    interrupted_by_message: bool
    language: str = ""  # as its kernelspec has it
    early: bool = False
    waits: bool = False

    @property
    def name(self) -> str:
        """What its guest calls it."""
        return self.guest.kernel_id


class Processes:
    """The kernel processes of all leases. Raises as `reattach.ask` does, and `timeout`."""

    def __init__(self, desk: Desk, *, clock: Clock) -> None:
        self._desk = desk
        self._clock = clock

    def now(self) -> float:
        """Unix seconds."""
        return self._clock.now()

    async def all(self, tenancy: Tenancy) -> dict[str, list[Process]]:
        """Those that an earlier daemon started, or that ran before the lease: by kernel, the oldest
        process first. One that died before anybody took it is none. Raises `not_supported` for a
        guest that knows of no kernels.
        """
        found: dict[str, list[Process]] = {}
        try:
            with _within(_START_S):
                guests = await ask(self._desk, tenancy, lambda g: g.kernels.list())
        except SandboxdError as error:
            if error.code is ErrorCode.NOT_FOUND:
                raise _without_kernels() from error
            raise
        for process in _read(guests):
            if process.waits and not process.guest.alive:
                continue
            found.setdefault(process.kernel_id, []).append(process)
        for processes in found.values():
            processes.sort(key=lambda process: process.generation)
        return found

    async def specs(self, tenancy: Tenancy) -> list[KernelSpec]:
        """The kernelspecs of the sandbox."""
        with _within(_START_S):
            places = folders(tenancy.lease.terms.env)
            return await ask(self._desk, tenancy, lambda g: list_specs(g, places=places))

    async def start(self, tenancy: Tenancy, order: KernelOrder) -> Process:
        """A kernel's first process. Raises `start_failed` for a kernelspec that is not there."""
        with _within(_START_S):
            places = folders(tenancy.lease.terms.env)
            spec = await ask(self._desk, tenancy, lambda g: find_spec(g, order.spec, places=places))
            start = KernelStart(
                kernel_id=_name(order.kernel_id, 1),
                argv=spec.argv,
                env={**spec.env, **order.env},
                cwd=order.cwd,
                note=_note(order, generation=1, by_message=spec.interrupted_by_message),
            )
            return await self._start(tenancy, start)

    async def take(self, tenancy: Tenancy, process: Process, order: KernelOrder) -> Changes | None:
        """Have a kernel from before the lease be what `order` asks for: what it lacks for that, or
        None where it died. Again is as good as once.
        """
        by_message = process.interrupted_by_message
        note = _note(order, generation=process.generation, by_message=by_message)
        note |= {"early": True, "language": process.language}
        with _within(_START_S):
            alive, changes = await ask(
                self._desk,
                tenancy,
                lambda g: g.kernels.take(process.name, env=order.env, cwd=order.cwd, note=note),
            )
        return changes if alive else None

    async def bind(self, talk: Talk, changes: Changes, *, language: str) -> bool:
        """Give a kernel what it lacks, and have it take cells. False where it must be started anew
        for that.
        """
        if not binding.can_bind(changes, language=language):
            return False
        kind, content = "kernel_info_request", {}
        if steps := binding.binding(changes):
            kind, content = "execute_request", binding.silent(steps)
        try:
            reply = await talk.ask(kind, content, within_s=_PREPARE_S, msg_id=READY)
        except SandboxdError as error:  # where the sandbox is gone, whoever starts anew hears it
            log.info("kernel.not_bound", kernel=talk.name, why=str(error))
            return False
        if (why := binding.failure(reply)) is not None:
            log.info("kernel.not_bound", kernel=talk.name, why=why)
        return why is None

    async def start_anew(self, tenancy: Tenancy, order: KernelOrder, before: Process) -> Process:
        """Its next process, started as the last one was."""
        generation, by_message = before.generation + 1, before.interrupted_by_message
        start = KernelStart(
            kernel_id=_name(order.kernel_id, generation),
            like=before.name,
            note=_note(order, generation=generation, by_message=by_message),
        )
        with _within(_START_S):
            return await self._start(tenancy, start)

    async def _start(self, tenancy: Tenancy, start: KernelStart) -> Process:
        guest = await ask(self._desk, tenancy, lambda g: g.kernels.start(start))
        (process,) = _read([guest])
        return process

    def talk(
        self,
        tenancy: Tenancy,
        process: Process,
        *,
        heard: Callable[[Message], None],
        missed: Callable[[Missing], None],
    ) -> Talk:
        """A conversation with a process, which `Talk.run` begins."""
        return Talk(self._desk, tenancy, process.guest, heard=heard, missed=missed)

    async def interrupt(self, tenancy: Tenancy, process: Process) -> None:
        """Interrupt the kernel and the programs that it waits for, by signal."""
        with _within(_KILL_S):
            await ask_once(self._desk, tenancy, lambda g: g.kernels.signal(process.name, "INT"))

    async def kill(self, tenancy: Tenancy, process: Process) -> None:
        """End a process and all that it started; it is dead when this returns."""
        with _within(_KILL_S):
            await ask(self._desk, tenancy, lambda g: g.kernels.signal(process.name, "KILL"))

    async def remove(self, tenancy: Tenancy, kernel_id: str) -> None:
        """End a kernel and have its guest forget all its processes."""
        for process in (await self.all(tenancy)).get(kernel_id, []):
            await self.kill(tenancy, process)
            forget = partial(_forget, name=process.name)
            with _within(_KILL_S):
                await ask(self._desk, tenancy, forget)

    async def make_ready(self, talk: Talk) -> bool:
        """Have a kernel take cells; False where it ended, or did not answer in time. What it shows
        must reach us as its answers do, so it is asked until both do.
        """
        with anyio.move_on_after(READY_S):
            while talk.ended is None:
                with suppress(SandboxdError):
                    info = await talk.ask(
                        "kernel_info_request", {}, within_s=_ASK_AGAIN_S, seen=True
                    )
                    await self._prepare(talk, info)
                    return True
        return False

    async def _prepare(self, talk: Talk, info: Message) -> None:
        """What a kernel is told before its first cell, without count or history; the last of it
        marks it as ready, for later daemons too. Raises as `Talk.ask` does.
        """
        if binding.language_of(info) == binding.PYTHON:
            await tell(talk, binding.PREPARATION)
        await talk.ask("kernel_info_request", {}, within_s=_PREPARE_S, msg_id=READY)


def early_start(kernel_id: str, spec: KernelSpec, *, expected: Claim) -> KernelStart:
    """A kernel that is started before anybody leases its sandbox."""
    order = KernelOrder(kernel_id=kernel_id, spec=spec.name)
    note = _note(order, generation=1, by_message=spec.interrupted_by_message)
    return KernelStart(
        kernel_id=_name(kernel_id, 1),
        argv=spec.argv,
        env=spec.env,
        note={**note, "early": True, "waits": True, "language": spec.language},
        expected=expected,
    )


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raises `timeout` for a guest that does not answer in time."""
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError:
        raise SandboxdError(
            ErrorCode.TIMEOUT, f"the guest did not answer within {seconds:g} s"
        ) from None


async def tell(talk: Talk, expressions: Mapping[str, str]) -> Message:
    """Have a kernel evaluate expressions of ours, without count or history; the reply."""
    return await talk.ask("execute_request", binding.silent(expressions), within_s=_PREPARE_S)


def _without_kernels() -> SandboxdError:
    return SandboxdError(
        ErrorCode.NOT_SUPPORTED,
        "this sandbox has no kernels: its backend cannot, or it was made before kernels came; "
        "lease a new one",
    )


async def _forget(guest: Guest, *, name: str) -> None:
    await guest.kernels.forget(name)


def _name(kernel_id: str, generation: int) -> str:
    return f"{kernel_id}.{generation}"


def _note(order: KernelOrder, *, generation: int, by_message: bool) -> dict[str, Any]:
    return {
        "kernel_id": order.kernel_id,
        "spec": order.spec,
        "cwd": order.cwd,
        "generation": generation,
        "by_message": by_message,
    }


def _read(guests: Iterable[GuestKernel]) -> list[Process]:
    """Those whose notes are ours."""
    found = []
    for guest in guests:
        note = guest.note
        kernel_id, generation = note.get("kernel_id"), note.get("generation")
        if isinstance(kernel_id, str) and isinstance(generation, int):
            found.append(
                Process(
                    guest=guest,
                    kernel_id=kernel_id,
                    spec=str(note.get("spec")),
                    cwd=str(note.get("cwd") or ""),
                    generation=generation,
                    interrupted_by_message=note.get("by_message") is True,
                    language=str(note.get("language") or ""),
                    early=note.get("early") is True,
                    waits=note.get("waits") is True,
                )
            )
    return found
