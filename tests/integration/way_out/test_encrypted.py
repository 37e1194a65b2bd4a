"""A forward to an https address: plain HTTP inside, TLS outside, and only with who is meant."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream
from anyio.streams.tls import TLSStream

from sandboxd.egress.outside import Outside
from sandboxd.model.way_out import ForwardOrder
from tests.support.ways import World, serving

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(60),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for a certificate"),
]

ASK = 'print(ask(b"GET /models HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n", 8000))'


@asynccontextmanager
async def encrypted(folder: Path, *, name: str) -> AsyncIterator[tuple[int, Path]]:
    """A TLS server on loopback with a certificate for that name, and where that lies."""
    key, certificate = folder / "key.pem", folder / "cert.pem"
    subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    await anyio.run_process([*command, "-keyout", str(key), "-out", str(certificate)])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def serve(stream: SocketStream) -> None:
        try:
            inner = await TLSStream.wrap(
                stream, server_side=True, ssl_context=context, standard_compatible=False
            )
        except ssl.SSLError:
            return
        head = await inner.receive()
        said = b" ".join(head.lower().split())
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b"
        await inner.send(answer % (len(said), said))

    async with serving(serve, host="127.0.0.1") as port:
        yield port, certificate


def trust(world: World, certificate: Path) -> None:
    """Have the way out believe that certificate, as the system's own authorities."""
    outside: Outside = world.rooms.ways_out._outside
    outside._tls = ssl.create_default_context(cafile=str(certificate))


async def test_a_request_goes_out_encrypted_and_with_its_secret(
    world: World, tmp_path: Path
) -> None:
    world.name("models.test", "127.0.0.1")
    async with encrypted(tmp_path, name="models.test") as (port, certificate):
        trust(world, certificate)
        order = ForwardOrder(
            url=f"https://models.test:{port}/v1", headers={"Authorization": "Bearer s3cret"}
        )
        box = await world.lease(forwards={8000: order})
        said = await box.python(ASK)
    assert said.startswith("HTTP/1.1 200 ")
    assert f"get /v1/models http/1.1 host: models.test:{port}" in said
    assert "authorization: bearer s3cret" in said
    assert box.tenancy.traffic.in_bytes > 0


async def test_who_shows_another_name_s_certificate_is_told_no_secret(
    world: World, tmp_path: Path
) -> None:
    world.name("models.test", "127.0.0.1")
    async with encrypted(tmp_path, name="other.test") as (port, certificate):
        trust(world, certificate)
        order = ForwardOrder(
            url=f"https://models.test:{port}", headers={"Authorization": "Bearer s3cret"}
        )
        box = await world.lease(forwards={8000: order})
        said = await box.python(ASK)
    assert said.startswith("HTTP/1.1 502 ")
    assert "no TLS connection" in said
    assert "s3cret" not in said
