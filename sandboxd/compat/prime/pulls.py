"""Which images that sandboxes wait for are on their way: their clients wait longer for those."""

from __future__ import annotations

from collections.abc import Iterable

import anyio

from sandboxd.api.services import Services
from sandboxd.backends.protocol import ImageState
from sandboxd.errors import SandboxdError
from sandboxd.model.image import image_name
from sandboxd.model.lease import Lease, LeaseState

_ASK_S = 5.0  # a status has to be answered; it may be without this


async def image_builds(leases: Iterable[Lease], services: Services) -> dict[str, str]:
    """By image, a name for its pull. Asks the backend only where a lease waits."""
    waiting = {LeaseState.QUEUED, LeaseState.MAKING}
    wanted = {lease.terms.spec.image for lease in leases if lease.state in waiting}
    if not wanted:
        return {}
    try:
        with anyio.fail_after(_ASK_S):
            images = await services.prefetcher.list_images()
    except (SandboxdError, TimeoutError):
        return {}  # a backend without images, or one that does not answer now
    coming = {each.reference for each in images if each.state is ImageState.PULLING}
    return {image: f"pull:{image}" for image in wanted if coming & {image, _full(image)}}


def _full(image: str) -> str:
    try:
        return str(image_name(image))
    except ValueError:  # a path
        return image
