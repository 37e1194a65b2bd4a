"""Who came from a process is found, children's children and orphans too."""

from __future__ import annotations

import os
import subprocess

from sandboxd.linux.processes import family

# The first of them is an orphan at once; it says its number and waits for the end of its input.
_TREE = "(sh -c 'echo $$; read end' <&3 &) 3<&0; sh -c 'echo $$; read end'"


def test_a_family_is_all_that_came_from_a_process_and_no_others() -> None:
    with subprocess.Popen(
        ["python3", "-c", _ADOPTS, _TREE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout
        both = {int(process.stdout.readline()) for _ in range(2)}
        found = family(process.pid)
        process.stdin.close()
    assert both | {process.pid} <= set(found)
    assert os.getpid() not in found
    assert len(found) == len(set(found))


def test_a_process_that_is_gone_has_no_family() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert family(process.pid) == [process.pid]


# Orphans come to it, as they come to the first process of a namespace.
_ADOPTS = """
import ctypes, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
subprocess.run(["sh", "-c", sys.argv[1]], check=False)
"""
