"""An image registry of the tests' own, what is pushed to it, and a front of it that can go wrong.

The registry is Debian's `docker-registry` on loopback, which engines take without TLS. Images are
pushed by its HTTP API, so that their platform and contents may be anything.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import socket
import subprocess
import tarfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx
from anyio.abc import SocketStream

MISSING = "no registry is installed here: apt-get install docker-registry"
USER, PASSWORD = "reader", "s3cret"
_BCRYPTED = "$2y$05$abcdefghijklmnopqrstuuLK7U1u6pVRmL7L1BBM2aS35PSZnDXlK"

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_TLS = b"\x16\x03"
_MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}
HERE = _MACHINE[os.uname().machine]
ELSEWHERE = "arm64" if HERE == "amd64" else "amd64"


def missing() -> str:
    """Why no registry can be had here; empty if one can."""
    return "" if shutil.which("docker-registry") else MISSING


@dataclass
class Registry:
    """A running registry. address: `127.0.0.1:PORT`, as image references begin."""

    address: str
    auth: tuple[str, str] | None = None
    _made: int = 0

    async def push(
        self,
        name: str,
        *,
        tag: str = "latest",
        files: dict[str, bytes] | None = None,
        architecture: str = HERE,
        user: str = "",
        env: tuple[str, ...] = (),
    ) -> str:
        """Push an image of one layer that holds `files`; its manifest's digest."""
        self._made += 1
        seed = {"seed": f"{self.address} {self._made} {os.getpid()}".encode()}
        layer, diff_id = _layer(seed | (files or {}))
        config = _json(
            {
                "architecture": architecture,
                "os": "linux",
                "config": {"User": user, "Env": list(env)},
                "rootfs": {"type": "layers", "diff_ids": [diff_id]},
                "history": [{"created_by": "a test"}],
            }
        )
        async with self._client() as client:
            manifest = {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": await _blob(client, name, config, _CONFIG),
                "layers": [await _blob(client, name, layer, _LAYER)],
            }
            return await _manifest(client, name, tag, manifest, _MANIFEST)

    async def push_list(self, name: str, digest: str, *, architecture: str) -> str:
        """Push a list of one manifest of `name`, for that architecture, as `list`; its digest."""
        async with self._client() as client:
            place = f"/v2/{name}/manifests/{digest}"
            head = await client.get(place, headers={"Accept": _MANIFEST})
            item = {
                "mediaType": _MANIFEST,
                "size": len(head.content),
                "digest": digest,
                "platform": {"architecture": architecture, "os": "linux"},
            }
            body = {"schemaVersion": 2, "mediaType": _LIST, "manifests": [item]}
            return await _manifest(client, name, "list", body, _LIST)

    async def ready(self) -> None:
        """Wait until it answers."""
        async with self._client() as client:
            with anyio.fail_after(15):
                while True:
                    with suppress(httpx.TransportError):
                        if (await client.get("/v2/")).status_code == 200:
                            return
                    await anyio.sleep(0.02)

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=f"http://{self.address}", auth=self.auth, timeout=20)


@asynccontextmanager
async def registry(directory: Path, *, private: bool = False) -> AsyncIterator[Registry]:
    """A registry that keeps its images below `directory`. private: only USER may read and write."""
    address = f"127.0.0.1:{_free_port()}"
    config: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(directory / "blobs")}},
        "http": {"addr": address},
    }
    if private:
        passwords = directory / "htpasswd"
        passwords.write_text(f"{USER}:{_BCRYPTED}\n")
        config["auth"] = {"htpasswd": {"realm": "tests", "path": str(passwords)}}
    file = directory / "registry.yml"
    file.write_text(json.dumps(config))  # which is YAML too
    with (directory / "registry.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: ASYNC220 - which waits for nothing
            ["docker-registry", "serve", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        running = Registry(address, (USER, PASSWORD) if private else None)
        await running.ready()
        yield running
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Fault:
    """What the front does instead of passing a request on. status 0: passed on, then spoilt."""

    status: int = 0
    headers: tuple[str, ...] = ()
    body: bytes = b"{}"
    flip: bool = False  # the last byte of the answer is another one
    stall_after: int | None = None  # bytes of the answer; then nothing, until `release`
    cut_after: int | None = None  # bytes of the answer; then the connection is closed


@dataclass
class Front:
    """Stands before a registry. rule: asked for each request, by method and path.

    asked: how often each request came. at_once, most: requests being answered now, and ever.
    """

    address: str
    rule: Callable[[str, str], Fault | None] = lambda _method, _path: None
    asked: Counter[str] = field(default_factory=Counter)
    at_once: int = 0
    most: int = 0
    release: anyio.Event = field(default_factory=anyio.Event)

    def count(self, pattern: str) -> int:
        """How many requests matched, as `GET /v2/…`."""
        return sum(n for line, n in self.asked.items() if re.search(pattern, line))

    def fault_for(self, method: str, path: str) -> Fault | None:
        """Count a request; what is to go wrong with it."""
        self.asked[f"{method} {path}"] += 1
        return self.rule(method, path)


@asynccontextmanager
async def front_of(behind: Registry) -> AsyncIterator[Front]:
    """A front of a registry, on an address of its own; leaving cuts what still goes through it."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - no query
    front = Front(f"127.0.0.1:{port}")

    async def serve(stream: SocketStream) -> None:
        with suppress(OSError, anyio.EndOfStream, anyio.BrokenResourceError):
            async with stream:
                await _pass_on(stream, front, behind)

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield front
        tasks.cancel_scope.cancel()


async def _pass_on(stream: SocketStream, front: Front, behind: Registry) -> None:
    head = await _head(stream)
    if head.startswith(_TLS):  # engines try that first
        return
    method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
    fault = front.fault_for(method, path)
    front.at_once += 1
    front.most = max(front.most, front.at_once)
    try:
        if fault is not None and fault.status:
            lines = [f"HTTP/1.1 {fault.status} No", *fault.headers, "Connection: close"]
            lines += ["Content-Type: application/json", f"Content-Length: {len(fault.body)}"]
            await stream.send("\r\n".join([*lines, "", ""]).encode() + fault.body)
            return
        host, _, port = behind.address.partition(":")
        async with await anyio.connect_tcp(host, int(port)) as upstream:
            await upstream.send(re.sub(rb"\r\n", b"\r\nConnection: close\r\n", head, count=1))
            await _answer(upstream, stream, fault or Fault(), front)
    finally:
        front.at_once -= 1


async def _answer(upstream: SocketStream, stream: SocketStream, fault: Fault, front: Front) -> None:
    if fault.flip:
        whole = b"".join([piece async for piece in upstream])
        await stream.send(whole[:-1] + bytes([whole[-1] ^ 1]))
        return
    bound = fault.stall_after if fault.stall_after is not None else fault.cut_after
    sent = 0
    async for piece in upstream:
        if bound is not None and sent + len(piece) > bound:
            await stream.send(piece[: bound - sent])
            if fault.stall_after is None:
                return
            await front.release.wait()
            await stream.send(piece[bound - sent :])
            bound = None
        else:
            await stream.send(piece)
        sent += len(piece)


async def _head(stream: SocketStream) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head and not head.startswith(_TLS):
        head += await stream.receive()
    return head


async def _blob(client: httpx.AsyncClient, name: str, data: bytes, kind: str) -> dict[str, Any]:
    begun = await client.post(f"/v2/{name}/blobs/uploads/")
    begun.raise_for_status()
    place = httpx.URL(begun.headers["Location"]).copy_merge_params({"digest": _digest(data)})
    (await client.put(place, content=data)).raise_for_status()
    return {"mediaType": kind, "size": len(data), "digest": _digest(data)}


async def _manifest(
    client: httpx.AsyncClient, name: str, tag: str, body: dict[str, Any], kind: str
) -> str:
    data = _json(body)
    answer = await client.put(
        f"/v2/{name}/manifests/{tag}", content=data, headers={"Content-Type": kind}
    )
    answer.raise_for_status()
    return _digest(data)


def _layer(files: dict[str, bytes]) -> tuple[bytes, str]:
    """A compressed layer, and the digest of what is in it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, data in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(data), 0o755
            archive.addfile(member, io.BytesIO(data))
    plain = buffer.getvalue()
    return gzip.compress(plain, compresslevel=1, mtime=0), _digest(plain)


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
