"""How long the local backend takes here: make, dispose, a hundred at once, memory of a guest.

    python scripts/measure_local.py [--count N] [--state-dir DIR]

Figures of a busy machine say little: the load stands beside them.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path

import anyio

from sandboxd.backends.local import LocalBackend, LocalSettings, open_local
from sandboxd.backends.protocol import BoxOrder, BoxRef
from sandboxd.model.ids import new_id
from sandboxd.model.template import BoxSpec, Resources

_SPEC = BoxSpec(image="host", resources=Resources(memory_mb=256, pids=64, disk_mb=64))
_MANY = 100


async def make(backend: LocalBackend) -> BoxRef:
    """One box of the host image."""
    return await backend.make(BoxOrder(box_id=new_id("box"), spec=_SPEC, labels={}))


async def one_by_one(backend: LocalBackend, count: int) -> None:
    """Medians of making and disposing, in ms."""
    makes, disposals = [], []
    for _ in range(count):
        start = time.perf_counter()
        box = await make(backend)
        ready = time.perf_counter()
        await backend.dispose(box)
        makes.append((ready - start) * 1e3)
        disposals.append((time.perf_counter() - ready) * 1e3)
    for name, figures in (("make to ready", makes), ("dispose", disposals)):
        p90 = sorted(figures)[int(len(figures) * 0.9)]
        print(f"{name}: median {statistics.median(figures):.1f} ms, p90 {p90:.1f} ms, n={count}")


async def all_at_once(backend: LocalBackend) -> None:
    """A hundred at once, and what they weigh while they idle."""
    boxes: list[BoxRef] = []

    async def one() -> None:
        boxes.append(await make(backend))

    start = time.perf_counter()
    async with anyio.create_task_group() as group:
        for _ in range(_MANY):
            group.start_soon(one)
    print(f"{_MANY} at once: ready in {time.perf_counter() - start:.2f} s")
    weights = [weight(int(box.details["pid"])) for box in boxes]
    rss, pss = (statistics.median(column) / 1024 for column in zip(*weights, strict=True))
    print(f"a guest: {rss:.1f} MiB resident, {pss:.1f} MiB of its own share")
    start = time.perf_counter()
    async with anyio.create_task_group() as group:
        for box in boxes:
            group.start_soon(backend.dispose, box)
    print(f"{_MANY} disposed of in {time.perf_counter() - start:.2f} s")


async def dispose_all(backend: LocalBackend) -> None:
    """Leave nothing, however the measuring went."""
    with anyio.move_on_after(60, shield=True):
        for owned in await backend.list_owned():
            await backend.dispose_remains(owned.box_id)


def weight(pid: int) -> tuple[int, int]:
    """Resident and proportional memory of a process, in KiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return sizes["Rss"], sizes["Pss"]


async def main() -> None:
    """Measure and print."""
    parser = ArgumentParser(description="measure the local backend")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--state-dir", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as fresh:
        settings = LocalSettings(
            state_dir=options.state_dir or Path(fresh), installation=new_id("m")[2:14]
        )
        start = time.perf_counter()
        async with open_local(settings) as backend:
            print(f"user {os.geteuid()}, load {os.getloadavg()[0]:.1f}")
            print(f"open: {(time.perf_counter() - start) * 1e3:.0f} ms")
            try:
                await one_by_one(backend, options.count)
                await all_at_once(backend)
            finally:
                await dispose_all(backend)


if __name__ == "__main__":
    anyio.run(main)
