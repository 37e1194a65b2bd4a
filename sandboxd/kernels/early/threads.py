"""Has what a thread of a Python kernel shows belong to the cell that started it.

Some ipykernels give it to whichever cell runs by then. Work that is given to a pool of threads
belongs to the cell that gave it. Whatever fails shows no frame of ours.
"""

from __future__ import annotations

_CODE = """
import functools, threading
from concurrent.futures import thread as pools

def follow(shell):
    start, enter, run = threading.Thread.start, pools._WorkItem.__init__, pools._WorkItem.run

    @functools.wraps(start)
    def start_for_its_cell(self):
        parent, begin = shell.get_parent(), self._bootstrap_inner

        def begin_for_its_cell():
            shell.set_thread_parent(parent)
            begin()

        self._bootstrap_inner = begin_for_its_cell
        start(self)

    @functools.wraps(enter)
    def enter_for_its_cell(self, *args, **kwargs):
        enter(self, *args, **kwargs)
        self.parent_of_cell = shell.get_parent()

    @functools.wraps(run)
    def run_for_its_cell(self, *args, **kwargs):
        shell.set_thread_parent(self.parent_of_cell)
        run(self, *args, **kwargs)

    threading.Thread.start = start_for_its_cell
    pools._WorkItem.__init__, pools._WorkItem.run = enter_for_its_cell, run_for_its_cell

if hasattr(shell, "set_thread_parent"):
    follow(shell)
"""

THREADS_FOLLOW_CELLS = f"exec({_CODE!r}, {{'shell': get_ipython()}})"
