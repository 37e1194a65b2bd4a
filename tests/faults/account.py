"""Rollouts over a daemon that is killed again and again, and the account of it.

    python -m tests.faults.account --rounds 20 --seed 7 [--backend docker [--live-restore]]
    python -m tests.faults.account --rounds 12 --leases 200 --callers 30 --backend kubernetes
    python -m tests.faults.account --leases 10000

A round is one life of the daemon: it ends by `kill -9`, now and then by SIGTERM, at a random
moment, while callers lease, run, stream, attach and detach, some of them over connections that are
cut. Boxes and single commands are killed from outside, guests are frozen, callers are cancelled,
whole trainers are killed. On docker a round may be one of the engine instead, on kubernetes one of
the API server or the kubelet. At the end everything must be accounted for.
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
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from sandboxd_client import AsyncSandboxd, SandboxdError
from tests.faults.clients import Caller
from tests.faults.ledger import Ledger
from tests.faults.stock import READY
from tests.faults.troubles import Troubles
from tests.faults.yards import Yard, open_yard
from tests.support.cuts import open_cutting_proxy
from tests.support.service import Service

_QUIET_S = 60.0
_COMPLAINT_CHARS = 3000  # the end of one
_SLOWEST = 6.0  # so much longer than on a quiet machine may a life be
_PATIENCE_S = 120.0  # of callers, while no daemon answers
_ENGINE_ROUNDS = {"docker": 0.3, "kubernetes": 0.4}  # of all rounds: of what lies below
_RUN, _RUN_S = "steady", 60.0  # it lives throughout, so none of its leases may be lost to it
_CUT_CALLERS = 0.25  # of all callers
_CUT_AFTER_BYTES = (500, 30_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is to be done. rounds: lives of the daemon or its engine, at least. leases: granted,
    at least. within_s: it ends then, whatever was reached. callers: at once.

    engine_rounds: which part of the rounds is the engine's. life_s: the longest of one daemon.
    """

    rounds: int = 0
    leases: int = 0
    within_s: float = 3600.0
    callers: int = 12
    engine_rounds: float = 0.0
    life_s: float = 2.5


class Account:
    """One run."""

    def __init__(
        self, service: Service, yard: Yard, ledger: Ledger, *, extent: Extent, seed: int
    ) -> None:
        self.service = service
        self.yard = yard
        self.ledger = ledger
        self.extent = extent
        self.seed = seed
        self.random = _chance(seed)
        self.troubles = Troubles(service, yard, ledger, self.random)
        self.began = time.monotonic()

    async def run(self) -> None:
        """All rounds, then the reckoning."""
        url = self.service.url
        cutting = open_cutting_proxy(
            url, after_bytes=lambda: self.random.randint(*_CUT_AFTER_BYTES)
        )
        async with (
            cutting as cuts,
            AsyncSandboxd(url=url, patience_s=_PATIENCE_S) as whole,
            AsyncSandboxd(url=cuts.url, patience_s=_PATIENCE_S) as cut,
        ):
            async with whole.run(_RUN, ttl_s=_RUN_S), anyio.create_task_group() as tasks:
                for number in range(self.extent.callers):
                    is_cut = number < self.extent.callers * _CUT_CALLERS
                    tasks.start_soon(self._worker, cut if is_cut else whole, number)
                async with anyio.create_task_group() as upset:
                    upset.start_soon(self.troubles.run)
                    await self._lives()
                    self.troubles.stopping = True
            self.ledger.took_s = time.monotonic() - self.began
            self.ledger.counts["connections cut"] = cuts.count
            await self._settle(whole)

    # What works.

    async def _worker(self, client: AsyncSandboxd, number: int) -> None:
        seed, excused = self.seed * 1000 + number, self.yard.excused
        caller = Caller(client, self.ledger, number=number, seed=seed, excused=excused)
        caller.run_id = _RUN if number % 2 else None
        chance = _chance(self.seed * 7919 + number)
        while not self.troubles.stopping:
            patience = chance.uniform(0, 1.5) if chance.random() < 0.15 else None
            with anyio.move_on_after(patience) as scope:
                await caller.roll_out()
            self.ledger.counts["callers cancelled"] += scope.cancelled_caught

    # What goes wrong with the daemon itself.

    async def _lives(self) -> None:
        pace = 1.0  # on a machine that is busy with other things a life must be longer
        for number in count(1):
            if self._is_enough(number):
                return
            life_s = self.random.uniform(0.2, self.extent.life_s) * self.yard.slowness
            await anyio.sleep(life_s * pace)
            if not self.service.runs:
                self.ledger.crashes.append(f"it ended by itself in round {number}")
            began = time.monotonic()
            if self.random.random() < self.extent.engine_rounds:
                self.ledger.counts[await to_thread.run_sync(self.yard.upset, self.random)] += 1
            else:
                await self._end_daemon(number)
                began = time.monotonic()
                await to_thread.run_sync(self.service.start)
            back_s = time.monotonic() - began
            pace = min(max(1.0, back_s / self.yard.slowness), _SLOWEST)
            print(
                f"round {number}: {began - self.began:.0f} s, back in {back_s:.1f} s, "
                f"{self.ledger.counts['leases granted']} leases, "
                f"{self.ledger.counts['commands answered']} commands",
                flush=True,
            )

    def _is_enough(self, number: int) -> bool:
        rounds, leases = number - 1, self.ledger.counts["leases granted"]
        reached = rounds >= self.extent.rounds and leases >= self.extent.leases
        if not reached and time.monotonic() - self.began > self.extent.within_s:
            self.ledger.short.append(f"{rounds} rounds and {leases} leases in the time there was")
            return True
        return reached

    async def _end_daemon(self, number: int) -> None:
        if self.random.random() < 0.2:
            self.ledger.counts["daemon stopped by SIGTERM"] += 1
            if await to_thread.run_sync(self.service.stop) != 0:
                self.ledger.crashes.append(f"SIGTERM in round {number} did not end it well")
        else:
            self.ledger.counts["daemon killed"] += 1
            await to_thread.run_sync(self.service.kill)

    # The reckoning.

    async def _settle(self, client: AsyncSandboxd) -> None:
        """Once all callers are gone, their leases end, and the pool is full and at rest."""
        deadline = anyio.current_time() + _QUIET_S
        while left := await self._left(client):
            if anyio.current_time() > deadline:
                self.ledger.leaked += left
                break
            await anyio.sleep(0.2)
        reasons, boxes = self._ends(), self._boxes_of_ends()
        for sandbox_id, error in self.ledger.named.items():
            box_id, reason = reasons.get(sandbox_id, ("", "unknown"))
            had = {box_id, *boxes.get(sandbox_id, ())}
            if not had & self.ledger.killed_boxes and reason not in self.yard.excused:
                self.ledger.unexplained.append(f"{sandbox_id} ({had}, {reason}): {error}")

    def _boxes_of_ends(self) -> dict[str, set[str]]:
        """Which box each lease had when it ended, in the daemon's own log: one whose caller was
        refused with it leaves no record.
        """
        found: dict[str, set[str]] = {}
        with self.service.log.open(errors="replace") as lines:
            for line in lines:
                with suppress(ValueError):  # a line that a kill cut short
                    said = json.loads(line)
                    if said["event"] == "lease.ended":
                        found.setdefault(said["sandbox_id"], set()).add(said["box_id"] or "")
        return found

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
        found: dict[str, tuple[str, str]] = {}
        holders: dict[str, str] = {}
        for record in self._records():
            box, end = record["box"] or {}, record["end"] or {}
            box_id = box.get("box_id", "")
            found[record["id"]] = (box_id, end.get("reason", "none"))
            if box_id and holders.setdefault(box_id, record["id"]) != record["id"]:
                both = f"{holders[box_id]} and {record['id']}"
                self.ledger.reused.append(f"{both} had {box_id}")
            # Boxes are counted by themselves: an ended lease need not say that its box is gone.
            if record["state"] not in {"ending", "ended"}:
                self.ledger.leaked.append(f"{record['id']} is {record['state']} in the store")
            self.ledger.counts[f"ended: {end.get('reason')}"] += 1
        return found

    def _records(self) -> list[dict[str, Any]]:
        store = f"file:{self.service.state}/leases.db?mode=ro"
        with closing(sqlite3.connect(store, uri=True)) as db:
            return [json.loads(text) for (text,) in db.execute("SELECT record FROM leases")]


def _chance(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - to be repeated, not to be secret


def _complaints(log: Path) -> list[str]:
    """What the daemon never should say: errors, and tracebacks, each in one piece."""
    found: list[str] = []
    for line in log.read_text(errors="replace").splitlines():
        is_event = line.startswith("{")
        if is_event and ('"level": "error"' in line or '"level":"error"' in line):
            found.append(line)
        elif not is_event and "Traceback" in line and not (found and found[-1].endswith("\n")):
            found.append(f"{line}\n")
        elif not is_event and found and found[-1].endswith("\n"):
            found[-1] += f"{line}\n"
        elif is_event and found:
            found[-1] = found[-1].rstrip()
    return [text[-_COMPLAINT_CHARS:].rstrip() for text in found]


def keep_account(yard: Yard, *, extent: Extent, seed: int) -> Ledger:
    """Run it in a folder of its own; nothing of it is left afterwards, or the ledger says what."""
    ledger = Ledger()
    with _service(yard) as service:
        account = Account(service, yard, ledger, extent=extent, seed=seed)
        anyio.run(account.run)
        ledger.crashes += _complaints(service.log)
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, help="lives of the daemon (20, unless --leases)")
    parser.add_argument("--leases", type=int, default=0, help="go on until so many were granted")
    parser.add_argument("--minutes", type=float, default=60.0, help="and no longer than this")
    parser.add_argument("--callers", type=int, default=12, help="at once")
    parser.add_argument("--seed", type=int, default=time.time_ns() % (1 << 30))
    parser.add_argument("--backend", choices=["local", "docker", "kubernetes"], default="local")
    parser.add_argument("--live-restore", action="store_true", help="of the engine of the tests")
    args = parser.parse_args()
    extent = Extent(
        rounds=args.rounds if args.rounds is not None else 0 if args.leases else 20,
        leases=args.leases,
        within_s=args.minutes * 60,
        callers=args.callers,
        engine_rounds=_ENGINE_ROUNDS.get(args.backend, 0.0),
        life_s=6.0 if args.leases else 2.5,
    )
    print(f"seed {args.seed}", flush=True)
    with open_yard(args.backend, live_restore=args.live_restore) as yard:
        ledger = keep_account(yard, extent=extent, seed=args.seed)
        print(ledger)
    print("the account is balanced" if ledger.balanced else "THE ACCOUNT IS NOT BALANCED")
    return 0 if ledger.balanced else 1


if __name__ == "__main__":
    sys.exit(main())
