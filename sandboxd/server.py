"""The HTTP server, without its signal handling: who starts the daemon decides when it stops."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from sandboxd.connections import GuardedConnection, GuardedWebSocket
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

BACKLOG = 2048
_IDLE_S = 320  # promised to callers: at least 300
_PING_S = 20.0  # proxies cut what is silent for 30 s or 60 s
_PONG_S = 60.0  # a slow reader has our ping behind megabytes of its output
_MAX_MESSAGE_BYTES = (1 << 20) + 1  # a frame of the guest's protocol and its kind
# A caller whose machine is gone says no word of it, and a call in flight is use: so they are asked,
# and cut off after two minutes.
_GONE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)
_DRAIN_S = 5  # calls in flight at the end get so long; their commands live on


class Server(uvicorn.Server):
    """uvicorn raises the signal that stopped it again once it is done, which would kill the process
    before the rooms behind it are closed; so signals are not its business here.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def build_server(app: ASGIApp) -> Server:
    """A server for `serve(sockets=[…])`; set `should_exit` to stop it."""
    return Server(
        uvicorn.Config(
            app,
            http=GuardedConnection,
            proxy_headers=False,
            ws=GuardedWebSocket,
            ws_max_size=_MAX_MESSAGE_BYTES,
            ws_ping_interval=_PING_S,
            ws_ping_timeout=_PONG_S,
            ws_per_message_deflate=False,  # streams are never compressed
            lifespan="off",
            log_config=None,
            access_log=False,  # request lines may hold tokens
            server_header=False,
            timeout_keep_alive=_IDLE_S,
            timeout_graceful_shutdown=_DRAIN_S,
            backlog=BACKLOG,
        )
    )


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, whose connections end when their other ends are gone without a word.

    Raises `conflict` with the mend if the address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for option in _GONE:  # connections inherit it
            listener.setsockopt(*option)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise SandboxdError(
            ErrorCode.CONFLICT,
            f"cannot listen on {host}:{port} ({error.strerror}): give another --host or --port",
        ) from error
    listener.set_inheritable(False)
    return listener
