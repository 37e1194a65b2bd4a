"""The run directories of several installations lie in one place that each of them tidies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from sandboxd.guest.run_dir import open_run_dir


def test_a_neighbour_that_tidies_the_shared_parent_disturbs_nobody(tmp_path: Path) -> None:
    shared = tmp_path / "shared"

    def come_and_go(number: int) -> None:
        for _ in range(200):
            mine = open_run_dir(shared / str(number), "unused")
            mine.rmdir()
            with suppress(OSError):  # another's is still in it
                shared.rmdir()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(come_and_go, range(4)))
    assert not shared.exists()
