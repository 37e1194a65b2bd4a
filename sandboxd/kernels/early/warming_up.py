"""Kernels that are started before anybody leases their sandbox, until they truly answer.

Knows no leases. Whatever goes wrong is the task's fault, for no agent has acted: all but what the
host had too little of, and an end that nobody saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import anyio

from sandboxd.errors import SandboxdError
from sandboxd.guest.client import Guest
from sandboxd.guest.kernels import (
    Channel,
    GuestKernel,
    KernelEnded,
    KernelLine,
    Said,
)
from sandboxd.guest.line import GuestLost
from sandboxd.kernels.early import binding
from sandboxd.kernels.messages import Message, NoMessage, Writer
from sandboxd.kernels.processes import early_start
from sandboxd.kernels.specs import find_spec, folders
from sandboxd.leases.granting.early import expected_claim
from sandboxd.leases.slots import Slots
from sandboxd.model.claim import Claim
from sandboxd.model.command import ExecRecord
from sandboxd.model.ids import new_id, new_kernel_id
from sandboxd.model.template import BoxSpec
from sandboxd.pool.setting_up import fault_of, start_together
from sandboxd.pool.stock import DiaryEntry
from sandboxd.wire.codes import ErrorCode, Fault

_READY_S = 120.0
_IMPORT_S = 120.0  # for each module
_FIRST_PATIENCE_S = 1.0  # before it is asked again


class WarmingUp:
    """An `EarlyStarter`. limits: on every process of a box. slots: lends them processors."""

    def __init__(self, *, limits: Mapping[str, int], slots: Slots) -> None:
        self._limits = limits
        self._slots = slots

    async def start_all(self, guest: Guest, spec: BoxSpec) -> tuple[DiaryEntry, ...]:
        """See `EarlyStarter`. Cancelled or failed: what was started goes with the box."""
        expected = expected_claim(spec, limits=self._limits, slots=self._slots)
        return await start_together(
            (f"warm-up-{name}", partial(_start, guest, spec, name, expected=expected))
            for name in spec.kernels
        )


async def _start(guest: Guest, spec: BoxSpec, name: str, *, expected: Claim) -> DiaryEntry:
    began = anyio.current_time()
    try:
        with anyio.fail_after(_READY_S):
            found = await find_spec(guest, name, places=folders(expected.env))
            start = early_start(new_kernel_id(), found, expected=expected)
            kernel = await guest.kernels.start(start)
    except TimeoutError:
        raise _failed(name, f"could not be started within {_READY_S:g} s") from None
    except SandboxdError as error:
        if error.code in {ErrorCode.SANDBOX_LOST, ErrorCode.START_FAILED}:
            raise
        raise _failed(name, error.detail, fault=Fault.TASK) from error  # no such user, no workdir
    async with guest.kernels.attach(kernel.kernel_id) as line:
        speaker = _Speaker(line, kernel, spec=name)
        language = binding.language_of(await speaker.greet())
        if language == binding.PYTHON:
            await speaker.rehearse()
            for module in spec.kernel_terms.preload:
                await speaker.preload(module)
    return {
        "at": kernel.record.started_at,
        "event": "kernel",
        "spec": name,
        "duration_s": anyio.current_time() - began,
    }


class _Speaker:
    """Speaks with a kernel that nobody else speaks with yet: one question at a time.

    Raises `start_failed` where the kernel ends, and GuestLost.
    """

    def __init__(self, line: KernelLine, kernel: GuestKernel, *, spec: str) -> None:
        self._line = line
        self._writer = Writer(kernel.key)
        self._spec = spec

    async def greet(self) -> Message:
        """Ask who it is until its answers and what it shows both reach us; its answer."""
        patience_s = _FIRST_PATIENCE_S
        with anyio.move_on_after(_READY_S):
            while True:
                with anyio.move_on_after(patience_s):
                    return await self._ask("kernel_info_request", {})
                patience_s *= 2
        raise _failed(self._spec, f"did not answer within {_READY_S:g} s")

    async def rehearse(self) -> None:
        """Have it run something: the first cell of a kernel takes twice as long as others."""
        content = binding.silent(binding.PREPARATION, code="None")
        with anyio.move_on_after(_READY_S):
            await self._ask("execute_request", content)
            return
        raise _failed(self._spec, f"did not run anything within {_READY_S:g} s")

    async def preload(self, module: str) -> None:
        """Have it import a module."""
        content = binding.silent(binding.importing(module))
        try:
            with anyio.fail_after(_IMPORT_S):
                why = binding.failure(await self._ask("execute_request", content))
        except TimeoutError:
            why = f"it took over {_IMPORT_S:g} s"
        if why is not None:
            detail = f"could not import {module!r} of `kernel_preload`: {why}"
            raise _failed(self._spec, detail, fault=Fault.TASK, module=module)

    async def _ask(self, kind: str, content: Mapping[str, Any]) -> Message:
        """The reply, once the kernel is idle again."""
        msg_id = new_id("own")
        parts = self._writer.parts(kind, content, msg_id=msg_id)
        with suppress(GuestLost):  # how a kernel ended can still be read
            await self._line.send(Channel.SHELL, msg_id, parts)
        reply: Message | None = None
        idle = False
        while reply is None or not idle:
            message = await self._next()
            if message is None or message.parent_id != msg_id:
                continue
            if message.channel is Channel.SHELL:
                reply = message
            idle |= message.content.get("execution_state") == "idle"
        return reply

    async def _next(self) -> Message | None:
        """The next message; None for anything else that came."""
        match await anext(self._line):
            case KernelEnded(record=record):
                raise _ended(self._spec, record)
            case Said() as said:
                try:
                    return self._writer.read(said)
                except NoMessage:
                    return None
            case _:  # a message that could not be sent too: how the kernel ended comes behind it
                return None


def _ended(spec: str, record: ExecRecord) -> SandboxdError:
    words = record.last_words()
    how = words or record.detail or record.reason or record.signal or record.outcome
    detail = f"is not available in this image: it ended before it answered: {how}"
    return _failed(spec, detail, fault=fault_of(record), outcome=record.outcome)


def _failed(
    spec: str, detail: str, *, fault: Fault | None = None, **details: object
) -> SandboxdError:
    return SandboxdError(
        ErrorCode.START_FAILED,
        f"kernel {spec!r} {detail}",
        fault=fault,
        mask=True,
        details={"spec": spec, **details},
    )
