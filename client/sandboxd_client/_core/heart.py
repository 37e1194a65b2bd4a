"""A heart: beats in a thread of its own, so that a program whose event loop computes for a minute
is still heard of. It stops with its process, which is what a heartbeat is about.
"""

from __future__ import annotations

import os
import threading  # noqa: TID251 - see above
from collections.abc import Callable

from sandboxd_client.errors import Conflict, SandboxdError


class Heart:
    """Calls `beat()` again and again.

    beat: blocks for a moment; raises typed errors. every_s: from the end of one beat to the next;
    after a failed one it is tried again sooner. A Conflict ends it: `lost` says so. trouble: why
    the last beat failed, None once one went well.
    """

    def __init__(self, beat: Callable[[], object], *, every_s: float, name: str) -> None:
        self._beat = beat
        self._every_s = every_s
        self._stopped = threading.Event()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.lost = False
        self.trouble: SandboxdError | None = None

    @property
    def ours(self) -> bool:
        """False in a process that was forked meanwhile: there it does not beat."""
        return os.getpid() == self._process

    def start(self) -> None:
        """Begin; the first beat comes after `every_s`."""
        self._thread.start()

    def stop(self, within_s: float) -> None:
        """No more beats. Waits so long for one that is under way."""
        self._stopped.set()
        if self.ours and self._thread.is_alive():
            self._thread.join(within_s)

    def _run(self) -> None:
        pause_s = self._every_s
        while not self._stopped.wait(pause_s):
            try:
                self._beat()
            except Conflict as error:
                self.lost, self.trouble = True, error
                return
            except SandboxdError as error:
                self.trouble, pause_s = error, min(1.0, self._every_s)
            else:
                self.trouble, pause_s = None, self._every_s
