"""A server for a port inside, which does by path what well and badly behaved servers do.

Run as `python3 port_program.py PORT`; needs nothing but the standard library.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import sys
from collections.abc import AsyncIterator

RAW = {
    "old": b"HTTP/1.0 200 OK\nContent-Type: text/plain\n\nold and short",
    "lines": b"HTTP/1.1 200\r\n\r\nno reason, no length",
    "nothing": b"",
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
    "cut": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nten bytes.",
    "cut-chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nten bytes.",
    "early": b"HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nlarge",
    "same": b'HTTP/1.1 304 Not Modified\r\nETag: "x"\r\nContent-Length: 5\r\n\r\n',
    "none": b"HTTP/1.1 204 No Content\r\n\r\n",
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n",
    "hop": b"HTTP/1.1 200 OK\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: x\r\n"
    b"X-End: 1\r\nContent-Length: 0\r\n\r\n",
    "trailers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n"
    b"2\r\nhi\r\n0\r\nX-T: 1\r\n\r\n",
    "hints": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    "moved": b"HTTP/1.1 302 Found\r\nLocation: /echo?moved\r\n"
    b"Set-Cookie: a=1; Path=/; Domain=x\r\nContent-Length: 0\r\n\r\n",
    "unasked": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "denied": b"HTTP/1.1 403 Forbidden\r\nContent-Length: 7\r\nX-Why: no\r\n\r\nnot you",
}
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
PIECE = b"x" * 65536

state = {"sent": 0, "ended": 0}
released = asyncio.Event()


class Exchange:
    """One request; its methods are named by paths."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: list[str]
    ) -> None:
        self.reader, self.writer = reader, writer
        self.method, self.target, _ = head[0].split()
        pairs = [line.partition(":") for line in head[1:]]
        self.pairs = [(name.lower(), value.strip()) for name, _, value in pairs]
        self.headers = dict(self.pairs)

    async def answer(self) -> None:
        """Do what the path says."""
        name = self.target.partition("?")[0].strip("/")
        if name in RAW:
            await self.say(RAW[name])
        elif name in {"ws", "duplex", "events", "endless", "go-on", "read-nothing", "release"}:
            await getattr(self, name.replace("-", "_"))()
        else:
            await self.echo()

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        await self.say(b"%x\r\n%b\r\n" % (len(data), data))

    async def body(self) -> AsyncIterator[bytes]:
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int(await self.reader.readline(), 16):
                yield await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            return
        left = int(self.headers.get("content-length", 0))
        while left and (piece := await self.reader.read(min(left, 65536))):
            left -= len(piece)
            yield piece

    async def echo(self) -> None:
        digest, size = hashlib.sha256(), 0
        async for piece in self.body():
            digest.update(piece)
            size += len(piece)
        told: dict[str, object] = {
            "method": self.method,
            "target": self.target,
            "headers": self.pairs,
        }
        told |= {"size": size, "digest": digest.hexdigest(), "state": state}
        said = json.dumps(told).encode()
        await self.say(WHOLE % len(said) + (b"" if self.method == "HEAD" else said))

    async def go_on(self) -> None:
        await self.say(b"HTTP/1.1 100 Continue\r\n\r\n")
        got = b"".join([piece async for piece in self.body()])
        await self.say(WHOLE % len(got) + got)

    async def duplex(self) -> None:
        await self.say(CHUNKED)
        async for piece in self.body():
            await self.chunk(piece)
        await self.say(b"0\r\n\r\n")

    async def events(self) -> None:
        await self.say(CHUNKED)
        await self.chunk(b"data: first\n\n")
        await released.wait()
        await self.chunk(b"data: second\n\n")
        await self.say(b"0\r\n\r\n")

    async def endless(self) -> None:
        """In chunks; as an old server does with `?old`."""
        old = self.target.endswith("?old")
        await self.say(b"HTTP/1.0 200 OK\r\n\r\n" if old else CHUNKED)
        try:
            while True:
                await (self.say(PIECE) if old else self.chunk(PIECE))
                state["sent"] += len(PIECE)
        finally:
            state["ended"] += 1

    async def read_nothing(self) -> None:
        await released.wait()

    async def release(self) -> None:
        released.set()
        await self.say(WHOLE % 0)

    async def ws(self) -> None:
        """Echoes frames. Text `close CODE` closes, `vanish` cuts; `?half` begins a frame."""
        key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode(), usedforsecurity=False).digest())
        head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        head += b"Sec-WebSocket-Accept: " + accept + b"\r\nSet-Cookie: w=1; Path=/\r\n"
        if protocols := self.headers.get("sec-websocket-protocol"):
            head += (
                b"Sec-WebSocket-Protocol: " + protocols.split(",")[-1].strip().encode() + b"\r\n"
            )
        await self.say(head + b"\r\n")
        if self.target.endswith("?half"):
            await self.say(b"\x82\x7e\x10\x00half")
            await released.wait()
        closed = False
        while not closed:
            first, data = await self.frame()
            if first == 0x81 and data.startswith(b"close "):
                first, data = 0x88, int(data[6:]).to_bytes(2, "big") + b"as asked"
            if first == 0x81 and data == b"vanish":
                return
            if first == 0x89:
                first = 0x8A
            await self.say(frame_head(first, len(data)) + data)
            closed = first == 0x88

    async def frame(self) -> tuple[int, bytes]:
        first, second = await self.reader.readexactly(2)
        size = second & 0x7F
        if size >= 126:
            size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8), "big")
        mask = await self.reader.readexactly(4)
        masked = await self.reader.readexactly(size)
        key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
        return first, (int.from_bytes(masked, "big") ^ key).to_bytes(size, "big")


def frame_head(first: int, size: int) -> bytes:
    if size < 126:
        return bytes((first, size))
    if size < 1 << 16:
        return bytes((first, 126)) + size.to_bytes(2, "big")
    return bytes((first, 127)) + size.to_bytes(8, "big")


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head: list[str] = []
    try:
        while line := (await reader.readline()).decode("latin-1").strip():
            head.append(line)
        await Exchange(reader, writer, head).answer()
    except (OSError, ValueError, EOFError, IndexError):
        pass  # whoever asked has gone, or spoke no HTTP
    finally:
        writer.close()


async def main(port: int) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", port, limit=1 << 20)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
