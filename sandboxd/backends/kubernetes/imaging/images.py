"""Has nodes pull what templates name, and what callers ask for, before its first pod."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import anyio
import structlog

from sandboxd.backends.kubernetes.imaging.bodies import (
    IMAGE,
    Errand,
    Standing,
    body_of,
    daemon_sets_path,
    errand_of,
    selector_of,
    standing_from,
)
from sandboxd.backends.kubernetes.imaging.sight import Sight
from sandboxd.backends.kubernetes.objects import pods_path
from sandboxd.backends.kubernetes.pods import Pod, pod_from
from sandboxd.backends.kubernetes.refusals import is_stuck, stuck, trouble_of
from sandboxd.backends.kubernetes.settings import KubernetesSettings
from sandboxd.backends.kubernetes.talking.server import ApiServer, Refused, refused_call
from sandboxd.backends.kubernetes.watching.book import PodBook
from sandboxd.backends.protocol import Image, ImageState, Wanted
from sandboxd.clock import Clock, SystemClock
from sandboxd.errors import SandboxdError
from sandboxd.model.template import PodOptions
from sandboxd.wire.codes import ErrorCode, Fault

log = structlog.get_logger(__name__)

_MOST = 64  # DaemonSets of an installation: each is a pod on each of its nodes
_NOTICE_S = 5.0  # in which a change of templates is noticed, which costs the server nothing
_LONGEST_S = 600.0  # for an image that somebody waits for
_STUCK_S = 20.0
_CLOSING_S = 15.0
_MAX_USED = 1024
_CONFLICT = 409


class KubernetesImages:
    """Implements the seam's `Images`. Nodes pull by themselves, and wait ever longer after each
    failure; here it is only said what they are to have.
    """

    def __init__(
        self,
        server: ApiServer,
        book: PodBook,
        settings: KubernetesSettings,
        *,
        namespace: str,
        clock: Clock | None = None,
    ) -> None:
        self._server = server.lane(2)
        self._book = book
        self._settings = settings
        self._namespace = namespace
        self._clock = clock or SystemClock()
        self._templates: Callable[[], Mapping[str, Wanted]] | None = None
        self._tell: Callable[[str], None] = lambda _: None
        self._asked: dict[str, int] = {}  # by image: how many wait for it
        self._used_at: dict[str, float] = {}
        self._done: set[str] = set()  # digests of errands
        self._sight = Sight()
        self._looked = anyio.Event()
        self._bell = anyio.Event()

    def wanted_by(self, templates: Callable[[], Mapping[str, Wanted]]) -> None:
        """See the protocol."""
        self._templates = templates
        self._bell.set()

    def when_pulled(self, call: Callable[[str], None]) -> None:
        """See the protocol."""
        self._tell = call

    def use(self, reference: str) -> None:
        """A box was made of an image."""
        self._used_at.pop(reference, None)
        self._used_at[reference] = self._clock.now()
        if len(self._used_at) > _MAX_USED:
            del self._used_at[next(iter(self._used_at))]

    async def list_images(self) -> list[Image]:
        """What templates name, callers wait for, or boxes are made of, as it was last seen."""
        await anyio.lowlevel.checkpoint()
        in_use = self._in_use()
        names = {*(errand.image for errand in self._errands()), *in_use}
        return [self._image(name, in_use=in_use.get(name, 0)) for name in sorted(names)]

    async def prefetch(self, reference: str) -> Image:
        """Have all nodes pull it that its templates' pods may go to, or else all there are.

        Raises `image_unavailable`, `backend_unavailable`. Cancelled: what nodes have begun goes on.
        """
        self._asked[reference] = self._asked.get(reference, 0) + 1
        self._sight.at_once()
        self._bell.set()
        try:
            with anyio.move_on_after(_LONGEST_S):
                return await self._until_there(reference)
            raise self._too_late(reference)
        finally:
            self._asked[reference] -= 1
            if not self._asked[reference]:
                del self._asked[reference]
            self._bell.set()

    async def run(self) -> None:
        """Keep what is wanted in place, until cancelled."""
        while self._templates is None and not self._asked:
            await self._ring()
        while True:
            try:
                if self._is_due():
                    await self._look()
            except (SandboxdError, Refused) as error:
                self._sight.failed(refused_call(error) if isinstance(error, Refused) else error)
                log.warning("images.unseen", error=str(error))
            self._looked.set()
            self._looked = anyio.Event()
            with anyio.move_on_after(min(self._sight.pause_s, _NOTICE_S)):
                await self._ring()

    async def clear(self) -> None:
        """Take all of them away, where that can be done at once; gone is fine."""
        with anyio.move_on_after(_CLOSING_S, shield=True):
            try:
                for standing in await self._standings():
                    await self._remove(standing)
            except (SandboxdError, Refused) as error:
                log.warning("images.not_cleared", error=str(error))

    # What is to be there.

    def _errands(self) -> list[Errand]:
        """Without those beyond what may be; stock comes first."""
        errand = partial(errand_of, secrets=self._settings.image_pull_secrets)
        wanted = self._templates() if self._templates is not None else {}
        named = sorted(wanted.items(), key=lambda item: not item[1].stocked)
        errands = [
            errand(image, options)
            for image, want in named
            for options in sorted(want.pods, key=lambda each: each.fields)
        ]
        errands += [
            errand(image, PodOptions())
            for image in self._asked
            if image not in wanted or not wanted[image].pods
        ]
        return list(dict.fromkeys(errands))[:_MOST]

    def _is_due(self) -> bool:
        wanted = {errand.digest for errand in self._errands()}
        is_other = self._sight.outage is None and wanted != self._sight.standings.keys()
        return is_other or anyio.current_time() >= self._sight.due_at

    async def _look(self) -> None:
        """Create what is missing, remove what nobody wants, and see how far the rest is."""
        errands = {errand.digest: errand for errand in self._errands()}
        found = {standing.digest: standing for standing in await self._standings()}
        for digest in found.keys() - errands.keys():
            await self._remove(found.pop(digest))
        for digest in errands.keys() - found.keys():
            found[digest] = await self._create(errands[digest])
        late = [errands[digest] for digest, each in found.items() if not each.is_done]
        trouble = await self._trouble(late)
        self._sight.saw(found, trouble)
        done = self._sight.done
        for digest in done - self._done:
            log.info("image.on_nodes", image=errands[digest].image, nodes=found[digest].wanted)
            self._tell(errands[digest].image)
        self._done = done

    async def _standings(self) -> list[Standing]:
        found = await self._server.get(
            daemon_sets_path(self._namespace),
            labelSelector=selector_of(self._settings.installation),
        )
        return [standing_from(body) for body in found.get("items") or ()]

    async def _create(self, errand: Errand) -> Standing:
        body = body_of(
            errand,
            installation=self._settings.installation,
            tag=self._settings.tag,
            guest_image=self._settings.guest_image,
        )
        name = body["metadata"]["name"]
        try:
            await self._server.begin(daemon_sets_path(self._namespace), body)
        except Refused as refusal:
            if refusal.status != _CONFLICT:  # somebody was faster
                raise
        return Standing(digest=errand.digest, name=name)

    async def _remove(self, standing: Standing) -> None:
        await self._server.delete(daemon_sets_path(self._namespace, standing.name))

    async def _trouble(self, late: Iterable[Errand]) -> dict[str, SandboxdError]:
        """Why the nodes do not have them yet, where they fail at it."""
        by_digest = {errand.digest: errand for errand in late}
        if not by_digest:
            return {}
        wanted = selector_of(self._settings.installation)
        found = await self._server.get(pods_path(self._namespace), labelSelector=wanted)
        troubles: dict[str, SandboxdError] = {}
        for body in found.get("items") or ():
            errand = by_digest.get(str(body["metadata"]["labels"][IMAGE]))
            error = None if errand is None else self._trouble_of(pod_from(body), errand.image)
            if errand is not None and error is not None:
                troubles[errand.digest] = error
        return troubles

    def _trouble_of(self, pod: Pod, image: str) -> SandboxdError | None:
        guest_image = self._settings.guest_image
        certain = trouble_of(pod, image, guest_image)
        if certain is not None or not is_stuck(pod):
            return certain
        return stuck(pod, image, guest_image, words=(), patience_s=_STUCK_S)

    # What is told of it.

    async def _until_there(self, reference: str) -> Image:
        patience = anyio.current_time() + _STUCK_S
        while True:
            await self._looked.wait()
            image, mine = self._image(reference), self._digests(reference)
            if image.state is ImageState.PRESENT:
                return image
            for digest in mine & self._sight.trouble.keys():
                error = self._sight.trouble[digest]
                if error.fault is Fault.TASK or anyio.current_time() > patience:
                    raise error
            if self._sight.outage is not None and anyio.current_time() > patience:
                raise self._sight.outage

    def _digests(self, reference: str) -> set[str]:
        return {errand.digest for errand in self._errands() if errand.image == reference}

    def _too_late(self, reference: str) -> SandboxdError:
        return SandboxdError(
            ErrorCode.IMAGE_UNAVAILABLE,
            f"image {reference}: {self._image(reference).progress} within {_LONGEST_S:g} s",
            details={"image": reference},
        )

    def _image(self, reference: str, *, in_use: int = 0) -> Image:
        used_at = self._used_at.get(reference)
        return self._sight.image(
            reference, self._digests(reference), in_use=in_use, used_at=used_at
        )

    def _in_use(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for pod in self._book.all():
            if not pod.is_over:
                found[pod.image] = found.get(pod.image, 0) + 1
        return found

    async def _ring(self) -> None:
        await self._bell.wait()
        self._bell = anyio.Event()
