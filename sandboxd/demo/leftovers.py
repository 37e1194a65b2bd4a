"""What is left over when all is given back: asked of the API, and looked up where boxes lie."""

from __future__ import annotations

import anyio

from sandboxd.demo.containers import containers_of
from sandboxd.demo.embedded import EmbeddedDaemon
from sandboxd_client import AsyncSandboxd

_SETTLE_S = 20.0
_PAUSE_S = 0.05


async def find_leftovers(client: AsyncSandboxd, daemon: EmbeddedDaemon) -> list[str]:
    """Sandboxes that should be gone by now: leased ones, and boxes that are no pool's stock.

    Gives the daemon some seconds to dispose of what was released last.
    """
    left = await _look(client, daemon)
    with anyio.move_on_after(_SETTLE_S):
        while left:
            await anyio.sleep(_PAUSE_S)
            left = await _look(client, daemon)
    return left


async def _look(client: AsyncSandboxd, daemon: EmbeddedDaemon) -> list[str]:
    leased = [info.id for info in await client.sandboxes()]
    pools = await client.pools()
    if leased or any(pool.leased or pool.disposing or pool.making for pool in pools):
        states = [f"{p.leased} leased, {p.disposing} disposing, {p.making} making" for p in pools]
        return leased or states
    boxes, stock = await boxes_of(daemon), sum(pool.ready for pool in pools)
    return boxes if len(boxes) > stock else []


async def boxes_of(daemon: EmbeddedDaemon) -> list[str]:
    """The boxes that there are: containers by their label, or what the local backend recorded.

    It may be asked when the daemon has ended.
    """
    if daemon.backend == "docker":
        return await containers_of(daemon.installation)
    place = daemon.state_dir / "boxes"
    return sorted(entry.name for entry in place.iterdir()) if place.is_dir() else []
