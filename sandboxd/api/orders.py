"""From what a body says to the nouns behind the doors, where more than one door needs it."""

from __future__ import annotations

from collections.abc import Mapping

from sandboxd.api.schemas.leases import ForwardBody
from sandboxd.api.schemas.leases import Network as NetworkBody
from sandboxd.model.template import Network
from sandboxd.model.way_out import ForwardOrder


def network_of(body: NetworkBody | None) -> Network | None:
    """What a sandbox may reach; None where nothing was said."""
    match body:
        case None:
            return None
        case "none" | "internet" as kind:
            return Network(kind=kind)
        case allowed:
            return Network(kind="allow", allow=tuple(allowed.allow))


def forward_orders(bodies: Mapping[int, ForwardBody]) -> dict[int, ForwardOrder]:
    """Forwards by their ports inside."""
    return {
        port: ForwardOrder(url=body.url, headers=dict(body.headers))
        for port, body in bodies.items()
    }
