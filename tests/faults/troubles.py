"""What is upset inside the boxes while callers work: each trouble at random moments, and written in
the ledger before it happens, so that what it causes can be told from what it must not.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from subprocess import DEVNULL
from typing import Any

import anyio
from anyio import to_thread

from tests.faults.inhabitants import Process, commands_in, kill_command
from tests.faults.ledger import Ledger
from tests.faults.yards import Yard
from tests.support.service import Service

AT_ONCE = "boxes at once, at most"
_TRAINER = """
import sys
from sandboxd_client import Sandboxd
client = Sandboxd(url=sys.argv[1])
run = client.run(sys.argv[2], ttl_s=3)
run.__enter__()
held = [client.lease("python", run_id=run.run_id) for _ in range(2)]
while True:
    for sandbox in held:
        sandbox.exec("true")
"""


@dataclass(slots=True)
class Troubles:
    """Those of one run. random: the one source of chance for all that goes wrong."""

    service: Service
    yard: Yard
    ledger: Ledger
    random: random.Random
    stopping: bool = False

    async def run(self) -> None:
        """Until `stopping`."""
        async with anyio.create_task_group() as tasks:
            for name, act, least_s, most_s in (
                ("boxes killed", self._kill_a_box, 0.3, 3.0),
                ("boxes removed", self._remove_a_box, 0.5, 4.0),
                ("launchers killed", self._kill_a_launcher, 0.5, 5.0),
                ("guests frozen", self._freeze_a_guest, 0.3, 4.0),
                ("commands killed", self._kill_a_command, 0.1, 1.0),
                ("shims killed", self._kill_a_shim, 0.2, 2.0),
            ):
                tasks.start_soon(self._again_and_again, name, act, least_s, most_s, name=name)
            tasks.start_soon(self._kill_trainers, name="trainers killed")

    async def _again_and_again(
        self, name: str, act: Callable[[str], bool], least_s: float, most_s: float
    ) -> None:
        while not self.stopping:
            await anyio.sleep(self.random.uniform(least_s, most_s) * self.yard.slowness)
            self.ledger.counts[name] += await to_thread.run_sync(self._on_one, act)

    def _on_one(self, act: Callable[[str], bool]) -> bool:
        """Do it to one box that it can be done to; False where there is none."""
        with suppress(Exception):  # an engine that is away says so in many ways
            boxes = sorted(self.yard.box_ids(self.service))
            self.ledger.counts[AT_ONCE] = max(self.ledger.counts[AT_ONCE], len(boxes))
            self.random.shuffle(boxes)
            return any(act(box_id) for box_id in boxes)
        return False

    def _kill_a_box(self, box_id: str) -> bool:
        with self.yard.guest(self.service, box_id) as guest:
            if guest is None:
                return False
            self.ledger.killed_boxes.add(box_id)
            self._judge(box_id)
            return guest.send(signal.SIGKILL)

    def _remove_a_box(self, box_id: str) -> bool:
        if self.yard.remove is None:
            return False
        self.ledger.killed_boxes.add(box_id)
        self.yard.remove(self.service, box_id)
        return True

    def _judge(self, box_id: str) -> None:
        """Nobody can ask it any more in a moment."""
        ran = self.yard.ran(self.service, box_id)
        twice = sorted({name for name in ran if ran.count(name) > 1})
        self.ledger.twice += [f"{box_id}: {name}" for name in twice]

    def _kill_a_launcher(self, box_id: str) -> bool:
        with self.yard.launcher(self.service, box_id) as launcher:
            return launcher is not None and launcher.send(signal.SIGKILL)

    def _freeze_a_guest(self, box_id: str) -> bool:
        with self.yard.guest(self.service, box_id) as guest:
            return guest is not None and _freeze(guest, for_s=self.random.uniform(0.1, 2.0))

    def _kill_a_command(self, box_id: str) -> bool:
        if (running := self._a_command(box_id)) is None:
            return False
        self.ledger.killed_commands.add(running[1])
        return kill_command(*running, shim=False)

    def _kill_a_shim(self, box_id: str) -> bool:
        """What sees to a command; the guest is to find out all the same how that ends."""
        running = self._a_command(box_id)
        return running is not None and kill_command(*running, shim=True)

    def _a_command(self, box_id: str) -> tuple[int, str] | None:
        with self.yard.guest(self.service, box_id) as guest:
            running = commands_in(guest.home) if guest is not None else {}
        return self.random.choice(sorted(running.items())) if running else None

    async def _kill_trainers(self) -> None:
        for number in count(1):
            if self.stopping:
                return
            await anyio.sleep(self.random.uniform(0.5, 4.0) * self.yard.slowness)
            command = [sys.executable, "-c", _TRAINER, self.service.url, f"trainer-{number}"]
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


def _freeze(guest: Process, *, for_s: float) -> bool:
    """Have it stand still for so long. Blocking."""
    try:
        stopped = guest.send(signal.SIGSTOP)
        time.sleep(for_s if stopped else 0)
    finally:
        guest.send(signal.SIGCONT)
    return stopped
