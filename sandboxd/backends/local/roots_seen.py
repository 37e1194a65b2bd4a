"""The local backend's images: unpacked roots, which nobody pulls and nobody drops."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from anyio import to_thread

from sandboxd.backends.local.launching.roots import HOST_IMAGE, Roots
from sandboxd.backends.protocol import Image, ImageState, Wanted
from sandboxd.clock import Clock, SystemClock

_MAX_SEEN = 1024


class RootsSeen:
    """The roots that boxes of this daemon were made of. Implements the seam's `Images`."""

    def __init__(
        self,
        roots: Roots,
        *,
        living: Callable[[], Collection[str]],
        clock: Clock | None = None,
    ) -> None:
        """living: the ids of the boxes that exist; those of another daemon count for no image."""
        self._roots = roots
        self._living = living
        self._clock = clock or SystemClock()
        self._used_at: OrderedDict[str, float | None] = OrderedDict({HOST_IMAGE: None})
        self._boxes: dict[str, str] = {}  # box id to image
        self._templates: Callable[[], Mapping[str, Wanted]] = dict

    def made(self, box_id: str, image: str) -> None:
        """A box was made of an image."""
        self._forget_the_gone()
        self._boxes[box_id] = image
        self._note(image, self._clock.now())

    async def list_images(self) -> list[Image]:
        """The host's own root, and those that templates name or boxes were made of."""
        names = sorted({*self._used_at, *self._templates()})
        errors = await to_thread.run_sync(_complaints, names)
        self._forget_the_gone()
        return [self._image(name, error) for name, error in zip(names, errors, strict=True)]

    async def prefetch(self, reference: str) -> Image:
        """Find out whether boxes can have a root, and show it to their ids."""
        await self._roots.find(reference)
        self._note(reference, self._used_at.get(reference))
        self._forget_the_gone()
        return self._image(reference, "")

    def wanted_by(self, templates: Callable[[], Mapping[str, Wanted]]) -> None:
        """See the protocol."""
        self._templates = templates

    def when_pulled(self, call: Callable[[str], None]) -> None:
        """See the protocol: nobody pulls roots."""

    def _image(self, reference: str, error: str) -> Image:
        return Image(
            reference=reference,
            state=ImageState.FAILED if error else ImageState.PRESENT,
            used_at=self._used_at.get(reference),
            in_use=sum(image == reference for image in self._boxes.values()),
            error=error,
        )

    def _note(self, image: str, used_at: float | None) -> None:
        self._used_at[image] = used_at
        self._used_at.move_to_end(image)
        if len(self._used_at) > _MAX_SEEN:
            self._used_at.popitem(last=False)

    def _forget_the_gone(self) -> None:
        living = self._living()
        self._boxes = {box: image for box, image in self._boxes.items() if box in living}


def _complaints(names: list[str]) -> list[str]:
    """What is wrong with each at first sight; a make looks closer. Blocking."""
    return [
        "" if name == HOST_IMAGE or Path(name).is_dir() else f"there is no directory {name}"
        for name in names
    ]
