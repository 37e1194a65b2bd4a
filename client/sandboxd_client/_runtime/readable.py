"""Whether a socket has something to read, asked without waiting. For both twins."""

from __future__ import annotations

import select
import socket
import sys


def is_readable(sock: socket.socket) -> bool:
    """Whether there is something to read: the stream's end counts, a closed socket has it."""
    fileno = sock.fileno()
    if fileno < 0:
        return True
    if sys.platform != "win32":  # select() cannot look at descriptors over 1023
        poll = select.poll()
        poll.register(fileno, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([fileno], [], [], 0)[0])
