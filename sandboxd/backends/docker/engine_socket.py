"""The docker SDK's way to an engine's socket, with one set of connections for all calls.

The SDK's own keeps a set per path, so that hardly a connection is used twice, and leaves a socket
open that it could not connect.
"""

from __future__ import annotations

import socket
from typing import Any

from docker import APIClient
from docker.transport import UnixHTTPAdapter
from docker.transport.unixconn import UnixHTTPConnection, UnixHTTPConnectionPool

SCHEME = "unix://"
_MOUNTED_AT = "http+docker://"  # what the SDK's URLs of a socket begin with


def use_own_connections(api: APIClient, path: str, *, timeout_s: int, most: int) -> None:
    """Have a client of the engine at `path` keep at most so many connections."""
    api.mount(_MOUNTED_AT, _Adapter(path, timeout_s=timeout_s, most=most))


class _Connection(UnixHTTPConnection):
    def connect(self) -> None:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.settimeout(self.timeout)
        try:
            line.connect(self.unix_socket)
        except BaseException:
            line.close()
            raise
        self.sock = line


class _Pool(UnixHTTPConnectionPool):
    def __init__(self, path: str, timeout_s: int, *, most: int) -> None:
        super().__init__("http://localhost", path, timeout_s, maxsize=most)
        self._timeout_s = timeout_s

    def _new_conn(self) -> Any:
        return _Connection(self.base_url, self.socket_path, self._timeout_s)


class _Adapter(UnixHTTPAdapter):
    def __init__(self, path: str, *, timeout_s: int, most: int) -> None:
        super().__init__(f"http+unix://{path}", timeout=timeout_s, max_pool_size=most)
        self._pool = _Pool(path, timeout_s, most=most)

    def get_connection(self, url: Any, proxies: Any = None) -> _Pool:
        return self._pool

    def close(self) -> None:
        super().close()
        self._pool.close()
