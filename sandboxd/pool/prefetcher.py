"""Has images ready before their first box, in tasks that outlive the request that asked."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import anyio
import structlog
from anyio.abc import TaskGroup

from sandboxd.backends.protocol import Image, Images, ImageState
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

log = structlog.get_logger(__name__)

_MAX_COMING = 256
_MAX_ANSWERS = 1024


class Prefetcher:
    """One task per image, whoever asks and however often. images: None where there are none."""

    def __init__(self, images: Images | None, tasks: TaskGroup) -> None:
        self._images = images
        self._tasks = tasks
        self._coming: dict[str, anyio.Event] = {}
        self._answers: OrderedDict[str, Image] = OrderedDict()  # of those that were asked for

    def begin(self, references: Iterable[str]) -> None:
        """Begin to get them; those that are coming already are not begun again.

        Raises `not_supported`, and `capacity` while too many are coming: then none is begun.
        """
        images = self._kept()
        new = [
            reference for reference in dict.fromkeys(references) if reference not in self._coming
        ]
        if len(self._coming) + len(new) > _MAX_COMING:
            raise SandboxdError(
                ErrorCode.CAPACITY,
                f"{len(self._coming)} images are coming, and {_MAX_COMING} may: ask again later",
                retry_after_s=5.0,
            )
        for reference in new:
            self._coming[reference] = anyio.Event()
            self._tasks.start_soon(self._get, images, reference, name=f"prefetch {reference}")

    async def wait(self, references: Iterable[str]) -> None:
        """Until each of them is here or has failed to come. Cancelled: they go on coming."""
        for reference in references:
            coming = self._coming.get(reference)
            if coming is not None:
                await coming.wait()

    def states(self, references: Sequence[str]) -> list[Image]:
        """How far each of them is, in that order, under the name that was asked for."""
        return [self._state(reference) for reference in dict.fromkeys(references)]

    async def list_images(self) -> list[Image]:
        """What is here, is coming, or failed to come.

        Raises `not_supported`, `backend_unavailable`.
        """
        return await self._kept().list_images()

    async def _get(self, images: Images, reference: str) -> None:
        try:
            self._remember(reference, await images.prefetch(reference))
        except SandboxdError as error:
            log.warning("prefetch.failed", image=reference, error=error.detail)
            failed = Image(reference=reference, state=ImageState.FAILED, error=error.detail)
            self._remember(reference, failed)
        finally:
            self._coming.pop(reference).set()

    def _remember(self, reference: str, answer: Image) -> None:
        self._answers[reference] = answer
        self._answers.move_to_end(reference)
        if len(self._answers) > _MAX_ANSWERS:
            self._answers.popitem(last=False)

    def _state(self, reference: str) -> Image:
        answer = self._answers.get(reference)
        if reference in self._coming or answer is None:
            return Image(reference=reference, state=ImageState.PULLING)
        return answer

    def _kept(self) -> Images:
        if self._images is None:
            raise SandboxdError(
                ErrorCode.NOT_SUPPORTED, "this backend keeps no images of its own: nothing to list"
            )
        return self._images
