"""Rollouts over a daemon that is killed again and again, and the account of it.

    python -m tests.faults.account --rounds 20 --seed 7 [--backend docker [--live-restore]]

A round is one life of the daemon: it ends by `kill -9`, now and then by SIGTERM, at a random
moment, while callers lease, run, stream and detach. Boxes are killed from outside, callers are
cancelled, whole trainers are killed. On docker a round may be one of the engine instead. At the
end everything must be accounted for.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import socket
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import anyio
from anyio import to_thread

from sandboxd_client import AsyncSandboxd, SandboxdError
from tests.faults.clients import Caller
from tests.faults.ledger import Ledger
from tests.faults.yards import READY, Yard, open_yard
from tests.support.service import Service

_QUIET_S = 60.0
_ENGINE_ROUNDS = 0.3  # where there is an engine: of all rounds

_TRAINER = """
import sys
from sandboxd_client import Sandboxd
client = Sandboxd(url=sys.argv[1])
held = [client.lease("python", idle_timeout_s=2) for _ in range(2)]
while True:
    for sandbox in held:
        sandbox.exec("true")
"""


@dataclass
class Account:
    """One run. rounds: lives of the daemon or its engine. callers: workers at once.

    engine_rounds: which part of the rounds is the engine's.
    """

    service: Service
    yard: Yard
    ledger: Ledger
    rounds: int
    callers: int
    seed: int
    engine_rounds: float = 0.0
    killed_boxes: set[str] = field(default_factory=set)
    stopping: bool = False

    def __post_init__(self) -> None:
        """One source of chance for all that goes wrong."""
        self.random = _chance(self.seed)

    async def run(self) -> None:
        """All rounds, then the reckoning."""
        async with AsyncSandboxd(url=self.service.url) as client:
            async with anyio.create_task_group() as tasks:
                for number in range(self.callers):
                    tasks.start_soon(self._worker, client, number)
                async with anyio.create_task_group() as troubles:
                    troubles.start_soon(self._kill_boxes)
                    troubles.start_soon(self._kill_trainers)
                    await self._lives()
                    self.stopping = True
            await self._settle(client)

    # What works.

    async def _worker(self, client: AsyncSandboxd, number: int) -> None:
        caller = Caller(client, self.ledger, name=f"w{number}", seed=self.seed * 1000 + number)
        caller.excused = self.yard.excused
        chance = _chance(self.seed * 7919 + number)
        while not self.stopping:
            patience = chance.uniform(0, 1.5) if chance.random() < 0.15 else None
            with anyio.move_on_after(patience) as scope:
                await caller.roll_out()
            self.ledger.counts["callers cancelled"] += scope.cancelled_caught

    # What goes wrong.

    async def _lives(self) -> None:
        for number in range(1, self.rounds + 1):
            await anyio.sleep(self.random.uniform(0.2, 2.5) * self.yard.slowness)
            if not self.service.runs:
                self.ledger.crashes.append(f"it ended by itself in round {number}")
            began = time.monotonic()
            if self.random.random() < self.engine_rounds:
                self.ledger.counts[await to_thread.run_sync(self.yard.upset, self.random)] += 1
            else:
                await self._end_daemon(number)
                began = time.monotonic()
                await to_thread.run_sync(self.service.start)
            print(
                f"round {number}/{self.rounds}: back in {time.monotonic() - began:.1f} s, "
                f"{self.ledger.counts['leases granted']} leases, "
                f"{self.ledger.counts['commands answered']} commands",
                flush=True,
            )

    async def _end_daemon(self, number: int) -> None:
        if self.random.random() < 0.2:
            self.ledger.counts["daemon stopped by SIGTERM"] += 1
            if await to_thread.run_sync(self.service.stop) != 0:
                self.ledger.crashes.append(f"SIGTERM in round {number} did not end it well")
        else:
            self.ledger.counts["daemon killed"] += 1
            await to_thread.run_sync(self.service.kill)

    async def _kill_boxes(self) -> None:
        while not self.stopping:
            await anyio.sleep(self.random.uniform(0.3, 3.0) * self.yard.slowness)
            box_id = await to_thread.run_sync(self.yard.kill_a_box, self.service, self.random)
            if box_id is not None:
                self.killed_boxes.add(box_id)
                self.ledger.counts["boxes killed"] += 1

    async def _kill_trainers(self) -> None:
        while not self.stopping:
            await anyio.sleep(self.random.uniform(0.5, 4.0) * self.yard.slowness)
            command = [sys.executable, "-c", _TRAINER, self.service.url]
            quiet: dict[str, Any] = {
                "stdout": DEVNULL,
                "stderr": DEVNULL,
                "env": self.service.environ,
            }
            async with await anyio.open_process(command, **quiet) as trainer:
                try:
                    await anyio.sleep(self.random.uniform(0.3, 2.0))
                finally:
                    with suppress(ProcessLookupError):  # its sandbox was killed, and so it ended
                        trainer.kill()
                    self.ledger.counts["trainers killed"] += 1

    # The reckoning.

    async def _settle(self, client: AsyncSandboxd) -> None:
        """Once all callers are gone, their leases end, and the pool is full and at rest."""
        deadline = anyio.current_time() + _QUIET_S
        while left := await self._left(client):
            if anyio.current_time() > deadline:
                self.ledger.leaked += left
                break
            await anyio.sleep(0.2)
        reasons = self._ends()
        for sandbox_id, error in self.ledger.named.items():
            box_id, reason = reasons.get(sandbox_id, ("", "unknown"))
            if box_id not in self.killed_boxes and reason not in self.yard.excused:
                self.ledger.unexplained.append(f"{sandbox_id} ({box_id}, {reason}): {error}")

    async def _left(self, client: AsyncSandboxd) -> list[str]:
        try:
            left = [f"{info.id} is {info.state}" for info in await client.sandboxes()]
            (pool,) = await client.pools()
        except SandboxdError as error:
            return [repr(error)]
        if (pool.ready, pool.making, pool.leased, pool.disposing) != (READY, 0, 0, 0):
            left.append(f"the pool is not at rest: {pool}")
        boxes = await to_thread.run_sync(self.yard.box_ids, self.service)
        if len(boxes) != READY:
            left.append(f"there are {len(boxes)} boxes, stock is {READY}")
        return left

    def _ends(self) -> dict[str, tuple[str, str]]:
        """Box and end of each lease, as the store has it. A lease that is not over is left over."""
        found = {}
        with closing(
            sqlite3.connect(f"file:{self.service.state}/leases.db?mode=ro", uri=True)
        ) as db:
            records = [json.loads(text) for (text,) in db.execute("SELECT record FROM leases")]
        for record in records:
            box, end = record["box"] or {}, record["end"] or {}
            found[record["id"]] = (box.get("box_id", ""), end.get("reason", "none"))
            # Boxes are counted by themselves: an ended lease need not say that its box is gone.
            if record["state"] not in {"ending", "ended"}:
                self.ledger.leaked.append(f"{record['id']} is {record['state']} in the store")
            self.ledger.counts[f"ended: {end.get('reason')}"] += 1
        return found


def _chance(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - to be repeated, not to be secret


def keep_account(
    yard: Yard, *, rounds: int, callers: int, seed: int, engine_rounds: float = 0.0
) -> Ledger:
    """Run it in a folder of its own; nothing of it is left afterwards, or the ledger says what."""
    ledger = Ledger()
    with _service(yard) as service:
        account = Account(
            service,
            yard,
            ledger,
            rounds=rounds,
            callers=callers,
            seed=seed,
            engine_rounds=engine_rounds,
        )
        anyio.run(account.run)
        for line in service.log.read_text(errors="replace").splitlines():
            if "Traceback" in line or '"level": "error"' in line or '"level":"error"' in line:
                ledger.crashes.append(line[:2000])
        service.end()
        ledger.leaked += yard.traces(service)
    return ledger


@contextmanager
def _service(yard: Yard) -> Iterator[Service]:
    """A daemon in a folder of its own, which stays if its boxes could not be removed."""
    folder = Path(tempfile.mkdtemp(prefix="sandboxd-account-"))
    folder.chmod(0o711)
    service = Service(folder, backend=yard.backend, config=yard.config, port=free_port())
    try:
        service.start()
        yield service
    finally:
        print(
            f"state in {service.state}, if this does not end well: sandboxd sweep --all", flush=True
        )
        service.end()
        shutil.rmtree(folder)


def free_port() -> int:
    """A port that nobody listens on just now, for a daemon that comes back at the same address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> int:
    """0 if the account is balanced."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--callers", type=int, default=12)
    parser.add_argument("--seed", type=int, default=time.time_ns() % (1 << 30))
    parser.add_argument("--backend", choices=["local", "docker"], default="local")
    parser.add_argument("--live-restore", action="store_true", help="of the engine of the tests")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    with open_yard(args.backend, live_restore=args.live_restore) as yard:
        ledger = keep_account(
            yard,
            rounds=args.rounds,
            callers=args.callers,
            seed=args.seed,
            engine_rounds=_ENGINE_ROUNDS if args.backend == "docker" else 0.0,
        )
        print(ledger)
    return 0 if ledger.balanced else 1


if __name__ == "__main__":
    sys.exit(main())
