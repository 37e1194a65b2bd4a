"""A daemon's rooms over real boxes, whose way out leads to servers of the test.

The resolver is the test's own. The machine's address counts as somebody else's, so that servers on
it stand for the world outside; its loopback stays its own.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from typing import Any, Literal

import anyio
from anyio.abc import SocketAttribute, SocketStream

from sandboxd.backends.protocol import Backend
from sandboxd.clock import SystemClock
from sandboxd.egress.addresses import Address
from sandboxd.egress.limits import WayOutLimits
from sandboxd.egress.outside import Outside, OwnDoor, Unreachable, is_own_address
from sandboxd.leases.store import MemoryStore
from sandboxd.leases.tenancy import Tenancy
from sandboxd.leases.terms import LeaseWish, resolve
from sandboxd.leases.ways_out import WayOutSettings
from sandboxd.model.command import Command
from sandboxd.model.ids import new_id
from sandboxd.model.template import BoxSpec, Network, PoolSettings, Template
from sandboxd.model.way_out import ForwardOrder
from sandboxd.rooms import Foundation, Rooms, open_rooms
from sandboxd.telemetry.metrics import Metrics

API_PORT = 8420  # of the daemon, as its ways out are told; nobody listens there

# What programs inside use: `ask` sends bytes and reads to the end, `tunnel` opens a CONNECT.
INSIDE = """
import json, os, socket, sys, time
PROXY = int(os.environ.get("http_proxy", "x:0").rsplit(":", 1)[1])
def to(port, data=b""):
    s = socket.create_connection(("127.0.0.1", port), 10)
    s.settimeout(20)
    s.sendall(data)
    return s
def rest(s):
    pieces = []
    try:
        while piece := s.recv(1 << 16):
            pieces.append(piece)
    except ConnectionResetError:
        pass
    return b"".join(pieces)
def ask(data, port=PROXY):
    s = to(port, data)
    return rest(s).decode("latin-1")
def head(s):
    said = b""
    while not said.endswith(b"\\r\\n\\r\\n"):
        piece = s.recv(1)
        if not piece:
            break
        said += piece
    return said.decode("latin-1")
def tunnel(where, early=b""):
    s = to(PROXY, f"CONNECT {where} HTTP/1.1\\r\\nHost: {where}\\r\\n\\r\\n".encode() + early)
    return s, head(s)
"""


def machine_address() -> Address | None:
    """One of this machine that is no loopback; None if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            found = ip_address(str(probe.getsockname()[0]))
        except OSError:
            return None
    return None if found.is_loopback else found


@dataclass(frozen=True)
class Box:
    """A leased sandbox."""

    world: World
    tenancy: Tenancy

    @property
    def id(self) -> str:
        return self.tenancy.lease.id

    async def shell(self, text: str) -> str:
        """What a command says, on either stream."""
        order = Command(exec_id=new_id("exe"), argv=("/bin/sh", "-c", f"( {text} ) 2>&1"))
        record = await self.world.rooms.commands.run(self.id, order, owner="tests", wait_s=None)
        return (record.stdout.head + record.stdout.tail).decode(errors="replace")

    async def python(self, text: str) -> str:
        """What a program says that has `INSIDE` before it."""
        order = Command(
            exec_id=new_id("exe"), argv=("python3", "-"), stdin=(INSIDE + text).encode()
        )
        record = await self.world.rooms.commands.run(self.id, order, owner="tests", wait_s=None)
        assert record.exit_code == 0, record
        return (record.stdout.head + record.stdout.tail).decode(errors="replace")

    async def start(self, text: str) -> str:
        """Start a program that has `INSIDE` before it, and leave it; returns its id."""
        order = Command(
            exec_id=new_id("exe"), argv=("python3", "-"), stdin=(INSIDE + text).encode()
        )
        await self.world.rooms.commands.start(self.id, order, owner="tests")
        return order.exec_id

    async def said(self, exec_id: str) -> str:
        """What a started program has said when it ended."""
        record = await self.tenancy.guest.look_exec(exec_id, wait_s=30)
        assert record.exit_code == 0, record
        return (record.stdout.head + record.stdout.tail).decode(errors="replace")

    async def until_said(self, exec_id: str, words: bytes) -> None:
        """Wait until a running program has written that."""
        read = partial(self.tenancy.guest.read_output, exec_id, stream="stdout", limit=4096)
        said = b""
        with anyio.fail_after(20):
            while words not in said:
                said += (await read(offset=len(said), wait_s=5)).data

    @property
    def refusals(self) -> list[str]:
        """What was noted as refused."""
        return [str(e["detail"]) for e in self.tenancy.diary if e["event"] == "way_out.refused"]


@dataclass
class World:
    """names: what the resolver answers, one list of addresses after the other, the last for ever.

    looked_up: what it was asked. here: where servers of the test listen.
    """

    here: Address
    template: Template
    names: dict[str, list[list[Address]]] = field(default_factory=dict)
    looked_up: list[str] = field(default_factory=list)
    opened: Rooms | None = None

    @property
    def rooms(self) -> Rooms:
        assert self.opened is not None
        return self.opened

    async def look_up(self, name: str) -> list[Address]:
        self.looked_up.append(name)
        answers = self.names.get(name)
        if not answers:
            raise Unreachable(f"{name}: there is no such name")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def name(self, name: str, *answers: str) -> None:
        """Have a name mean those addresses, the machine's own if none is given."""
        self.names[name] = [[ip_address(answer) for answer in answers] or [self.here]]

    async def lease(
        self,
        kind: Literal["none", "internet"] = "none",
        *,
        forwards: Mapping[int, ForwardOrder | str] | None = None,
        allow: tuple[str, ...] = (),
        template_network: bool = False,
        **wish: Any,
    ) -> Box:
        """A sandbox. allow: its network is this list; the machine's own address may be reached.
        template_network: what its template has instead.
        """
        network: Network | None = Network(kind=kind)
        if template_network:
            network = None
        elif allow:
            network = Network(kind="allow", allow=(*allow, f"{self.here}/32"))
        orders = {
            port: each if isinstance(each, ForwardOrder) else ForwardOrder(url=each)
            for port, each in (forwards or {}).items()
        }
        asked = LeaseWish(template="python", network=network, forwards=orders, **wish)
        order = resolve(asked, {"python": self.template}, direct=())
        lease, _ = await self.rooms.desk.granting.lease(order, owner="tests")
        return Box(self, self.rooms.desk.find(lease.id, owner="tests"))


@asynccontextmanager
async def open_world(
    backend: Backend, *, image: str, limits: WayOutLimits | None = None, **settings: bool
) -> AsyncIterator[World]:
    """Rooms over that backend; every box is gone at the end."""
    here = machine_address()
    assert here is not None
    spec = BoxSpec(image=image)
    template = Template(name="python", spec=spec, pool=PoolSettings(ready=0, max=16))
    world = World(here=here, template=template)
    outside = Outside(
        OwnDoor(API_PORT, frozenset({("api.test", 443)})),
        resolve=world.look_up,
        is_ours=lambda address: address != here and is_own_address(address),
    )
    foundation = Foundation(
        backend=backend,
        store=MemoryStore(),
        clock=SystemClock(),
        metrics=Metrics(),
        installation="ways",
        most=16,
        outside=outside,
        way_out=WayOutSettings(limits=limits or WayOutLimits(), **settings),
    )
    async with open_rooms(foundation, {"python": template}) as rooms:
        world.opened = rooms
        try:
            yield world
        finally:
            with anyio.CancelScope(shield=True), anyio.fail_after(30):
                assert await rooms.clear() == 0


@asynccontextmanager
async def serving(
    serve: Callable[[SocketStream], Awaitable[None]], *, host: str
) -> AsyncIterator[int]:
    """A TCP server outside; the port it listens on. What a connection's end cuts is no matter."""

    async def careful(stream: SocketStream) -> None:
        async with stream:
            try:
                await serve(stream)
            except (anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError):
                return

    async with (
        await anyio.create_tcp_listener(local_host=host, local_port=0) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, careful, name="server-outside")
        yield int(listener.extra(SocketAttribute.local_port))  # noqa: S610 - not Django's
        tasks.cancel_scope.cancel()


async def echo(stream: SocketStream) -> None:
    """Send back what comes, and end when it ends."""
    async for piece in stream:
        await stream.send(piece)
    await stream.send_eof()
