"""A connection to the engine of our own, for an answer that takes as long as it takes.

The SDK's calls sit in threads that nobody can end while an engine says nothing; waits on this one
can be cancelled. Goes wherever the SDK's client goes, but not over SSH.
"""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit

import anyio
from anyio.abc import ByteStream
from docker import APIClient

from sandboxd.backends.docker.engine import Engine, address, unavailable
from sandboxd.wire.http1 import AsyncConnection
from sandboxd.wire.streams import AnyioStream

_CONNECT_S = 10.0
_PORT, _TLS_PORT = 2375, 2376


async def dial(engine: Engine) -> AsyncConnection:
    """A fresh connection; the caller closes it. Raises `backend_unavailable`."""
    try:
        with anyio.fail_after(_CONNECT_S):
            return AsyncConnection(AnyioStream(await _stream(engine)))
    except (OSError, ValueError) as error:  # a TimeoutError and an SSLError among them
        raise unavailable(error) from error


async def _stream(engine: Engine) -> ByteStream:
    at = urlsplit(address(engine.host))
    if at.scheme in {"unix", "http+unix"}:
        return await anyio.connect_unix(at.netloc + at.path)
    if at.scheme == "ssh" or not at.hostname:
        msg = f"images cannot be pulled over {at.scheme}"
        raise ValueError(msg)
    if not engine.api.base_url.startswith("https://"):
        return await anyio.connect_tcp(at.hostname, at.port or _PORT)
    context = await anyio.to_thread.run_sync(_context, engine.api)
    return await anyio.connect_tcp(
        at.hostname, at.port or _TLS_PORT, ssl_context=context, tls_hostname=at.hostname
    )


def _context(api: APIClient) -> ssl.SSLContext:
    """As the SDK's client was told by the environment. Blocking. Raises OSError."""
    context = ssl.create_default_context(cafile=api.verify if isinstance(api.verify, str) else None)
    if api.verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if isinstance(api.cert, tuple):
        context.load_cert_chain(*api.cert)
    return context
