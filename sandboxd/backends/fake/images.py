"""The fake's images: names, which are here at once unless the script says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import anyio.lowlevel

from sandboxd.backends.fake.faults import Faults
from sandboxd.backends.fake.settings import FakeSettings
from sandboxd.backends.protocol import BoxOrder, Image, ImageState, Wanted
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode


class FakeImages:
    """Implements the seam's `Images`. orders: of the boxes that exist."""

    def __init__(
        self, settings: FakeSettings, faults: Faults, *, orders: Callable[[], Iterable[BoxOrder]]
    ) -> None:
        self._settings = settings
        self._faults = faults
        self._orders = orders
        self._used_at: dict[str, float | None] = {}
        self._coming: set[str] = set()
        self._templates: Callable[[], Mapping[str, Wanted]] = dict
        self._tell: Callable[[str], None] = lambda _: None

    def use(self, reference: str) -> None:
        """A box is made of an image. Raises `image_unavailable`."""
        self._check(reference)
        self._used_at[reference] = self._settings.clock.now()

    async def list_images(self) -> list[Image]:
        """What boxes were made of, what was asked for, what templates name."""
        await anyio.lowlevel.checkpoint()
        names = {*self._used_at, *self._coming, *self._templates()}
        return [self._image(name) for name in sorted(names)]

    async def prefetch(self, reference: str) -> Image:
        """Have it here, or meet the fault that was scripted for the next pull."""
        self._coming.add(reference)
        try:
            await anyio.sleep(self._faults.pull_s)
            if error := self._faults.take_pull():
                raise error
            self._check(reference)
            if reference not in self._used_at:
                self._used_at[reference] = None
                self._tell(reference)
        finally:
            self._coming.discard(reference)
        return self._image(reference)

    def wanted_by(self, templates: Callable[[], Mapping[str, Wanted]]) -> None:
        """See the protocol."""
        self._templates = templates

    def when_pulled(self, call: Callable[[str], None]) -> None:
        """See the protocol."""
        self._tell = call

    def _check(self, reference: str) -> None:
        images = self._settings.images
        if images is not None and reference not in images:
            raise SandboxdError(ErrorCode.IMAGE_UNAVAILABLE, f"there is no image {reference!r}")

    def _image(self, reference: str) -> Image:
        if reference in self._coming:
            return Image(reference=reference, state=ImageState.PULLING)
        return Image(
            reference=reference,
            state=ImageState.PRESENT,
            used_at=self._used_at.get(reference),
            in_use=sum(order.spec.image == reference for order in self._orders()),
        )
