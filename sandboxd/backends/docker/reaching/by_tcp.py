"""The way to a guest by TCP, for an engine on another machine.

Nothing is shared with the box: the guest and its token are put into its container before the
start. Whether it lives is the engine's to say.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread
from anyio.abc import ByteStream

from sandboxd.backends.docker.engine import Engine, EngineRefused
from sandboxd.backends.docker.reaching.way import Door, Facts, Hold
from sandboxd.backends.docker.records import BoxRecord, GuestAddress, Whereabouts
from sandboxd.backends.docker.refusals import call_refused
from sandboxd.backends.docker.watching.living import LivingBox
from sandboxd.backends.parts.tcp_lines import connect_proven, wait_until_proven
from sandboxd.guest.inside import GUEST_INSIDE, SHARED_INSIDE
from sandboxd.guest.tcp import GUEST_PORT, connect_tcp_guest

_TOKEN_INSIDE = f"{SHARED_INSIDE}/token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Which way to the ports of containers.

    host: where the engine publishes ports, on the engine's machine and from here alike. network:
    one that the daemon's own container is on, where containers are reached by their addresses in
    it and nothing is published.
    """

    host: str = ""
    network: str = ""


class TcpReach:
    """Guests that listen on TCP, and prove by their token that it is they."""

    def __init__(
        self, engine: Engine, *, route: Route, guest: bytes, token_of: Callable[[str], str]
    ) -> None:
        """guest: the executable, packed by `pack_guest`. token_of: of a box by its id."""
        self._engine = engine
        self._route = route
        self._guest = guest
        self._token_of = token_of

    def door(self, box_id: str) -> Door:
        """On a port of its own network, published or not."""
        arguments = ("--listen", f":{GUEST_PORT}", "--token-file", _TOKEN_INSIDE)
        return Door(arguments=arguments, port=GUEST_PORT, publish=self._route.host)

    async def furnish(self, box_id: str, container_id: str) -> None:
        """Put in the guest, and the token in a file that the guest deletes."""
        archive = self._guest + _packed_token(self._token_of(box_id))
        await self._engine.call(self._engine.api.put_archive, container_id, "/", archive)

    async def where(self, facts: Facts) -> Whereabouts:
        """From the engine's record."""
        if not facts["State"]["Running"]:
            return Whereabouts()
        settings = facts["NetworkSettings"]
        started_at = str(facts["State"]["StartedAt"])
        if self._route.network:
            own = settings["Networks"].get(self._route.network) or {}
            host, port = str(own.get("IPAddress", "")), GUEST_PORT
        else:
            bound = (settings["Ports"] or {}).get(f"{GUEST_PORT}/tcp") or [{}]
            host, port = self._route.host, int(bound[0].get("HostPort") or 0)
        return Whereabouts(address=GuestAddress(host=host, port=port, started_at=started_at))

    async def hold(self, record: BoxRecord) -> Hold | None:
        """Alive as long as the engine runs it, started when it was for us."""
        try:
            facts: Facts = await self._engine.call(
                self._engine.api.inspect_container, record.container_id
            )
        except EngineRefused as refusal:
            if refusal.status == 404:
                return None
            raise call_refused(refusal) from refusal
        state, address = facts["State"], record.address
        same = address is not None and state["StartedAt"] == address.started_at
        return Hold() if state["Running"] and same else None

    async def wait_for_guest(self, record: BoxRecord) -> None:
        """Until it has proven itself. Raises EndedEarly."""
        dial, lives = partial(self._dial, record), partial(self._lives, record)
        await anyio.aclose_forcefully(await wait_until_proven(dial, lives=lives))

    async def connect(self, box: LivingBox) -> ByteStream:
        """A proven stream; see `connect_proven`."""
        address = box.record.address
        at = f"{address.host}:{address.port}" if address else "no address"
        return await connect_proven(
            box,
            partial(self._dial, box.record),
            lives=partial(self._lives, box.record),
            end=box.word.dead.set,
            mend=f"is a packet filter between it and {at}, on the engine's machine?",
        )

    async def _lives(self, record: BoxRecord) -> bool:
        return await self.hold(record) is not None

    async def _dial(self, record: BoxRecord) -> ByteStream:
        address = record.address
        if address is None:
            raise ConnectionRefusedError("it has no address")
        return await connect_tcp_guest(address.host, address.port, self._token_of(record.box_id))


def pack_guest(binary: Path) -> bytes:
    """The guest's executable as the beginning of a compressed archive. Blocking."""
    data = binary.read_bytes()
    return gzip.compress(_member(GUEST_INSIDE, data, mode=0o755), compresslevel=1, mtime=0)


def _packed_token(token: str) -> bytes:
    """The end of the same archive: archives and compressed files may be put together of parts."""
    end = bytes(2 * tarfile.BLOCKSIZE)
    return gzip.compress(_member(_TOKEN_INSIDE, token.encode(), mode=0o400) + end, mtime=0)


def _member(path: str, data: bytes, *, mode: int) -> bytes:
    member = tarfile.TarInfo(path.lstrip("/"))
    member.size, member.mode = len(data), mode
    out = io.BytesIO(member.tobuf(tarfile.USTAR_FORMAT))
    out.seek(0, io.SEEK_END)
    out.write(data)
    out.write(bytes(-len(data) % tarfile.BLOCKSIZE))
    return out.getvalue()


async def open_tcp_reach(
    engine: Engine, *, route: Route, binary: Path, token_of: Callable[[str], str]
) -> TcpReach:
    """With the guest packed once for all boxes."""
    guest = await to_thread.run_sync(pack_guest, binary)
    return TcpReach(engine, route=route, guest=guest, token_of=token_of)
