"""Callers that keep count: each command leaves its name in its sandbox and says it, so that what
was lost, mixed up or run twice can be told afterwards.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

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

# Of a command: our process, the worker, its rollout, its place there. So it is nobody else's.
NAME = rb"a%d\.w\d+\.\d+\.\d+" % os.getpid()

_RAN = "/workspace/ran"
_LAST_LOOK_S = 3.0
_WAIT_S = 300.0
_GROUPS = 0.08  # of all rollouts: of several sandboxes at once
# Whoever was here before has left its name in both places.
_LOOK_ROUND = (
    "cat /workspace/lease /tmp/lease 2>/dev/null; echo {} | tee /tmp/lease >/workspace/lease"
)


class Caller:
    """One trainer's worker: leases, runs a batch, checks the batch, releases; again and again.

    excused: codes of leases that may be refused, masked.
    """

    def __init__(
        self,
        client: AsyncSandboxd,
        ledger: Ledger,
        *,
        number: int,
        seed: int,
        excused: frozenset[str] = frozenset(),
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._name = f"a{os.getpid()}.w{number}"
        self._random = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
        self._number = 0
        self._excused = excused
        self.run_id: str | None = None  # that its leases belong to

    async def roll_out(self) -> None:
        """One rollout. Never raises an ordinary exception: what goes wrong is in the ledger."""
        key = self._key()
        if self._random.random() < _GROUPS:
            await self._roll_out_a_group(key)
            return
        self._ledger.counts["leases asked for"] += 1
        try:
            sandbox = await self._client.lease(
                "python", idempotency_key=key, wait_timeout_s=_WAIT_S, run_id=self.run_id
            )
        except SandboxdError as error:
            self._refused(error)
            return
        self._ledger.counts["leases granted"] += 1
        await self._use(sandbox, f"{self._name}.{self._number}")

    async def _roll_out_a_group(self, key: str | None) -> None:
        """Several at once, each with its own batch."""
        count = self._random.randint(2, 4)
        self._ledger.counts["groups asked for"] += 1
        try:
            group = await self._client.group(
                "python", count=count, group_id=key, wait_timeout_s=_WAIT_S, run_id=self.run_id
            )
        except SandboxdError as error:
            self._refused(error)
            return
        self._ledger.counts["groups granted"] += 1
        self._ledger.counts["leases granted"] += count
        if len({sandbox.id for sandbox in group}) != count:
            self._ledger.wrong.append(f"{self._name}: a group of {count} has {list(group)}")
        async with group, anyio.create_task_group() as tasks:
            for sandbox in group:
                # Names of commands tell them apart by their number.
                self._number += 1
                tasks.start_soon(self._use, sandbox, f"{self._name}.{self._number}")

    async def _use(self, sandbox: AsyncSandbox, name: str) -> None:
        async with sandbox:
            try:
                await self._look_round(sandbox)
                await self._batch(sandbox, name)
            except (SandboxLost, LeaseEnded) as error:
                self._ledger.counts["sandboxes lost, by name"] += 1
                self._ledger.named[sandbox.id] = repr(error)
                if not error.mask:
                    self._ledger.wrong.append(f"{sandbox.id}: not masked: {error!r}")
            except SandboxdError as error:
                self._ledger.unexplained.append(f"{self._name}: {sandbox.id}: {error!r}")
            except Exception as error:  # noqa: BLE001 - that is what is being counted
                self._ledger.lost.append(f"{self._name}: {sandbox.id}: {error!r}")

    def _refused(self, error: SandboxdError) -> None:
        if isinstance(error, SandboxLost) and error.sandbox_id:
            self._ledger.named[error.sandbox_id] = repr(error)  # killed before it was told of
        elif error.code in self._excused and error.mask and error.fault == "infra":
            self._ledger.counts["leases refused, by name"] += 1
        else:
            self._ledger.unexplained.append(f"{self._name}: lease: {error!r}")

    def _key(self) -> str | None:
        """Half of the callers name their requests themselves."""
        self._number += 1
        return f"{self._name}-{self._number}" if self._random.random() < 0.5 else None

    async def _look_round(self, sandbox: AsyncSandbox) -> None:
        traces = (await sandbox.exec(_LOOK_ROUND.format(sandbox.id))).stdout.split()
        self._ledger.reused += [f"{sandbox.id}: {trace} was here" for trace in traces]

    async def _batch(self, sandbox: AsyncSandbox, name: str) -> None:
        names = [f"{name}.{place}" for place in range(6)]
        done = False
        try:
            await self._run_all(sandbox, names)
            if self._random.random() < 0.2:
                await sandbox.renew(1000)
            ran = Counter((await sandbox.files.read(_RAN)).decode().split())
            done = True
        finally:
            if not done:
                ran = await self._last_look(sandbox)
            self.judge(ran, of=sandbox.id)
        missing = [n for n in names if not ran[n] and n not in self._ledger.killed_commands]
        self._ledger.wrong += [f"{sandbox.id}: {name} never ran" for name in missing]

    def judge(self, ran: Counter[str], *, of: str) -> None:
        """What was found written in a sandbox."""
        self._ledger.twice += [f"{of}: {name}" for name, count in ran.items() if count > 1]

    async def _last_look(self, sandbox: AsyncSandbox) -> Counter[str]:
        """What ran until now, where the caller goes away or the sandbox went; if it can be read."""
        with anyio.move_on_after(_LAST_LOOK_S, shield=True), suppress(SandboxdError):
            return Counter((await sandbox.files.read(_RAN)).decode().split())
        return Counter()

    async def _run_all(self, sandbox: AsyncSandbox, names: list[str]) -> None:
        """Three at a time, each its own way. Raises the last error of any, once all have ended."""
        ways: list[Callable[[AsyncSandbox, str, int], Awaitable[None]]] = [
            self._run,
            self._run,
            self._stream,
            self._detach,
            self._in_a_shell,
            self._attach,
        ]
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

    # The ways to run a command.

    def _script(self, name: str, end: str) -> str:
        pause = self._random.choice([0, 0, 0.05, 0.3])
        return f"echo {name} >> {_RAN}; echo {name}; sleep {pause}; echo end; {end}"

    async def _run(self, sandbox: AsyncSandbox, name: str, code: int) -> None:
        self._check(name, code, await sandbox.exec(self._script(name, f"exit {code}")))

    async def _detach(self, sandbox: AsyncSandbox, name: str, code: int) -> None:
        process = await sandbox.start(self._script(name, f"exit {code}"), exec_id=name)
        await anyio.sleep(self._random.random() * 0.5)
        self._check(name, code, await process.wait())

    async def _in_a_shell(self, sandbox: AsyncSandbox, name: str, code: int) -> None:
        async with sandbox.shell() as shell:
            self._check(name, code, await shell.run(self._script(name, f"(exit {code})")))

    async def _stream(self, sandbox: AsyncSandbox, name: str, code: int) -> None:
        said, result = "", None
        async for event in sandbox.stream(self._script(name, f"exit {code}")):
            if isinstance(event, Stdout):
                said += event.data.decode()
            elif isinstance(event, Ended):
                result = event.result
        self._check_heard(name, code, said, result)

    async def _attach(self, sandbox: AsyncSandbox, name: str, code: int) -> None:
        """Its name comes by its input, its output by a WebSocket."""
        script = self._script("$name", f"exit {code}")
        process = await sandbox.start(f": {name}; read name; {script}", stdin_open=True)
        said, result = "", None
        async with process.attach() as terminal:
            with suppress(
                SandboxdError
            ):  # it was killed before it read; its end comes all the same
                await terminal.send(f"{name}\n")
            async for event in terminal:
                if isinstance(event, Stdout):
                    said += event.data.decode()
                elif isinstance(event, Ended):
                    result = event.result
        self._check_heard(name, code, said, result)

    def _check_heard(self, name: str, code: int, said: str, result: ExecResult | None) -> None:
        if result is None:
            self._ledger.lost.append(f"{name}: its line just stopped")
        else:
            self._check(name, code, result, said=said)

    def _check(self, name: str, code: int, result: ExecResult, *, said: str | None = None) -> None:
        self._ledger.counts["commands answered"] += 1
        stdout = result.stdout if said is None else said
        if (result.outcome, result.exit_code, stdout) == ("exited", code, f"{name}\nend\n"):
            return
        told = f"{result.outcome} {result.exit_code} {stdout!r}"
        if name not in self._ledger.killed_commands:
            self._ledger.wrong.append(f"{name}: wanted exited {code}, got {told}")
        elif (result.outcome, result.signal) != ("signaled", "KILL"):
            self._ledger.wrong.append(f"{name}: killed, got {told}")
