"""Callers that keep count: each command leaves its name in its sandbox and says it, so that what
was lost, mixed up or run twice can be told afterwards.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable

import anyio

from sandboxd_client import (
    AsyncSandbox,
    AsyncSandboxd,
    Ended,
    ExecResult,
    LeaseEnded,
    SandboxdError,
    SandboxLost,
    Stdout,
)
from tests.faults.ledger import Ledger

_RAN = "/workspace/ran"


class Caller:
    """One trainer's worker: leases, runs a batch, checks the batch, releases; again and again."""

    def __init__(self, client: AsyncSandboxd, ledger: Ledger, *, name: str, seed: int) -> None:
        self._client = client
        self._ledger = ledger
        self._name = name
        self._random = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
        self._number = 0
        self.excused: frozenset[str] = frozenset()  # codes of leases that may be refused, masked

    async def roll_out(self) -> None:
        """One rollout. Never raises an ordinary exception: what goes wrong is in the ledger."""
        self._ledger.counts["leases asked for"] += 1
        try:
            sandbox = await self._client.lease(
                "python", idempotency_key=self._key(), wait_timeout_s=60
            )
        except SandboxdError as error:
            if isinstance(error, SandboxLost) and error.sandbox_id:
                self._ledger.named[error.sandbox_id] = repr(error)  # killed before it was told of
            elif error.code in self.excused and error.mask and error.fault == "infra":
                self._ledger.counts["leases refused, by name"] += 1
            else:
                self._ledger.unexplained.append(f"{self._name}: lease: {error!r}")
            return
        self._ledger.counts["leases granted"] += 1
        async with sandbox:
            try:
                await self._batch(sandbox)
            except (SandboxLost, LeaseEnded) as error:
                self._ledger.counts["sandboxes lost, by name"] += 1
                self._ledger.named[sandbox.id] = repr(error)
                if not error.mask:
                    self._ledger.wrong.append(f"{sandbox.id}: not masked: {error!r}")
            except SandboxdError as error:
                self._ledger.unexplained.append(f"{self._name}: {sandbox.id}: {error!r}")
            except Exception as error:  # noqa: BLE001 - that is what is being counted
                self._ledger.lost.append(f"{self._name}: {sandbox.id}: {error!r}")

    def _key(self) -> str | None:
        """Half of the callers name their requests themselves."""
        self._number += 1
        return f"{self._name}-{self._number}" if self._random.random() < 0.5 else None

    async def _batch(self, sandbox: AsyncSandbox) -> None:
        ways: list[Callable[[AsyncSandbox, str, int], Awaitable[None]]] = [
            self._run,
            self._run,
            self._stream,
            self._detach,
        ]
        names = [f"{self._name}.{self._number}.{place}" for place in range(6)]
        three = anyio.CapacityLimiter(3)
        errors: list[Exception] = []

        async def one(name: str) -> None:
            try:
                async with three:
                    await self._random.choice(ways)(sandbox, name, self._random.randrange(256))
            except Exception as error:  # noqa: BLE001 - told below, once all have ended
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(one, name)
        for error in errors:
            raise error
        ran = Counter((await sandbox.files.read(_RAN)).decode().split())
        self._ledger.twice += [f"{sandbox.id}: {name}" for name in names if ran[name] > 1]
        self._ledger.wrong += [f"{sandbox.id}: {name} never ran" for name in names if not ran[name]]

    def _script(self, name: str, code: int) -> str:
        pause = self._random.choice([0, 0, 0.05, 0.3])
        return f"echo {name} >> {_RAN}; echo {name}; sleep {pause}; echo end; exit {code}"

    async def _run(self, sandbox: AsyncSandbox, name: str, code: int) -> None:
        self._check(name, code, await sandbox.exec(self._script(name, code)))

    async def _detach(self, sandbox: AsyncSandbox, name: str, code: int) -> None:
        process = await sandbox.start(self._script(name, code), exec_id=name)
        await anyio.sleep(self._random.random() * 0.5)
        self._check(name, code, await process.wait())

    async def _stream(self, sandbox: AsyncSandbox, name: str, code: int) -> None:
        said, result = "", None
        async for event in sandbox.stream(self._script(name, code)):
            if isinstance(event, Stdout):
                said += event.data.decode()
            elif isinstance(event, Ended):
                result = event.result
        if result is None:
            self._ledger.lost.append(f"{name}: its stream just stopped")
            return
        self._check(name, code, result, said=said)

    def _check(self, name: str, code: int, result: ExecResult, *, said: str | None = None) -> None:
        self._ledger.counts["commands answered"] += 1
        stdout = result.stdout if said is None else said
        if (result.outcome, result.exit_code, stdout) != ("exited", code, f"{name}\nend\n"):
            told = f"{result.outcome} {result.exit_code} {stdout!r}"
            self._ledger.wrong.append(f"{name}: wanted exited {code}, got {told}")
