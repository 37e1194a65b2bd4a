"""The line on which a guest has proven itself when its box was made, kept for its first caller."""

from __future__ import annotations

import socket

from anyio.abc import ByteStream, SocketAttribute


class FirstLine:
    """Of one box; may be empty. Synchronous: whoever lets go of a box has no time to wait."""

    def __init__(self) -> None:
        self._stream: ByteStream | None = None
        self._closed = False

    def put(self, stream: ByteStream) -> None:
        """Keep it. It stands on a socket of this machine."""
        self._stream = stream
        if self._closed:
            self.close()

    def take(self) -> ByteStream | None:
        """The stream, once; None where there is none, or its other end has let go of it."""
        stream, self._stream = self._stream, None
        if stream is None or _is_quiet(_socket_of(stream)):
            return stream
        _socket_of(stream).close()
        return None

    def close(self) -> None:
        """The box is gone, or let go of. Idempotent."""
        self._closed = True
        if self._stream is not None:
            _socket_of(self._stream).close()
            self._stream = None


def _socket_of(stream: ByteStream) -> socket.socket:
    found: socket.socket = stream.extra(SocketAttribute.raw_socket)  # noqa: S610 - not Django's
    return found


def _is_quiet(line: socket.socket) -> bool:
    """Whether nothing has come, as it must be while nobody has asked; not even its end."""
    try:
        line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
