"""Making one box, step by step: its token, its pod, its guest. Bounds how many start."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import anyio
import structlog
from anyio.abc import ByteStream

from sandboxd.backends.kubernetes.creating import PodPlan, pod_body, secret_body
from sandboxd.backends.kubernetes.objects import object_name, pods_path, secrets_path
from sandboxd.backends.kubernetes.pods import Pod, pod_from
from sandboxd.backends.kubernetes.reaching.way import Reach
from sandboxd.backends.kubernetes.records import BoxRecord, record_of_pod
from sandboxd.backends.kubernetes.refusals import (
    create_refused,
    is_stuck,
    never_ran,
    no_room,
    stuck,
    trouble_of,
)
from sandboxd.backends.kubernetes.removing import Remover
from sandboxd.backends.kubernetes.settings import GuestVolume, KubernetesSettings
from sandboxd.backends.kubernetes.talking.server import ApiServer, Refused
from sandboxd.backends.kubernetes.watching.book import PodBook
from sandboxd.backends.kubernetes.watching.judging import Judge
from sandboxd.backends.kubernetes.watching.verdicts import Word
from sandboxd.backends.parts.deaths import ended_early
from sandboxd.backends.parts.tcp_lines import EndedEarly, wait_until_proven
from sandboxd.backends.protocol import BoxOrder, Death
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

log = structlog.get_logger(__name__)

_CLEANUP_S = 25.0
_CANCELLED_S = 6.0
_STUCK_S = 20.0  # that a node may fail at what it tries again
_CONFLICT = 409
_TRIES = 10  # of what no node has run


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What all boxes of an installation stand on."""

    settings: KubernetesSettings
    namespace: str
    token_of: Callable[[str], str]
    guest_volume: GuestVolume = "copy"


@dataclass(slots=True)
class _Progress:
    """What there may be of a make, and is ours."""

    secret: bool = False
    pod: bool = False


class _NeverRan(Exception):
    """The node made the sandbox's container and never started it, so that it can be made again.

    told: what the caller hears if it cannot.
    """

    def __init__(self, told: SandboxdError) -> None:
        super().__init__(told.detail)
        self.told = told


class Maker:
    """Makes boxes of one installation."""

    def __init__(
        self,
        server: ApiServer,
        *,
        ground: Ground,
        reach: Reach,
        book: PodBook,
        judge: Judge,
        remover: Remover,
    ) -> None:
        self._server = server.lane(max(4, min(ground.settings.starting, 32)))
        self._ground = ground
        self._reach = reach
        self._book = book
        self._judge = judge
        self._remover = remover
        self._starting = anyio.Semaphore(ground.settings.starting)
        self._tag = ground.settings.tag

    async def make(self, order: BoxOrder) -> tuple[Pod, ByteStream | None]:
        """Make a box and wait for its guest: its pod, and the proven stream, the caller's to close,
        if such are kept.

        Raises as `Backend.make`. Failed or cancelled: what there is of it is removed, or found by
        its label.
        """
        async with self._starting:
            return await self._make(self._plan(order))

    async def _make(self, plan: PodPlan) -> tuple[Pod, ByteStream | None]:
        order, patience_s = plan.order, self._ground.settings.ready_timeout_s
        deadline = anyio.current_time() + patience_s  # of all tries together
        tries = 0
        while True:
            tries += 1
            progress = _Progress()
            try:
                with anyio.fail_after(deadline - anyio.current_time()):
                    return await self._bring_up(plan, progress)
            except _NeverRan as error:
                is_gone = await self._clean_up(order.box_id, progress)
                if tries == _TRIES or not is_gone:
                    raise error.told from error
                log.warning("make.again", box_id=order.box_id, error=error.told.detail)
            except TimeoutError as error:
                late = await self._too_late(plan, patience_s)
                await self._clean_up(order.box_id, progress)
                raise late from error
            except anyio.get_cancelled_exc_class():
                # A daemon that stops has no time for what its nodes do meanwhile.
                await self._clean_up(order.box_id, progress, within_s=_CANCELLED_S)
                raise
            except BaseException:
                await self._clean_up(order.box_id, progress)
                raise

    def _plan(self, order: BoxOrder) -> PodPlan:
        settings = self._ground.settings
        return PodPlan(
            order=order,
            installation=settings.installation,
            tag=settings.tag,
            guest_image=settings.guest_image,
            token=self._ground.token_of(order.box_id),
            arguments=self._reach.arguments,
            guest_volume=self._ground.guest_volume,
            seccomp_profile=settings.seccomp_profile,
            image_pull_secrets=settings.image_pull_secrets,
            cpu_request=settings.cpu_request,
            memory_request=settings.memory_request,
            orphan_s=settings.orphan_s,
        )

    async def _bring_up(self, plan: PodPlan, progress: _Progress) -> tuple[Pod, ByteStream | None]:
        created = await self._create(plan, progress)
        pod = await self._await_start(plan, created.uid)
        record = record_of_pod(pod)
        try:
            stream = await wait_until_proven(
                partial(self._reach.dial, record), lives=partial(self._lives, record)
            )
        except EndedEarly:
            death = await self._judge.examine(record)
            raise ended_early(death, plan.order.spec.image) from None
        try:
            await self._remover.remove_secret(plan.name)
            if not self._reach.keeps_lines:
                await anyio.aclose_forcefully(stream)
        except BaseException:
            await anyio.aclose_forcefully(stream)
            raise
        kept = stream if self._reach.keeps_lines else None
        return self._book.get(plan.name) or pod, kept

    async def _lives(self, record: BoxRecord) -> bool:
        pod = self._book.get(record.name) if self._book.flows else await self._judge.find(record)
        return pod is not None and pod.uid == record.uid and not pod.is_over

    async def _create(self, plan: PodPlan, progress: _Progress) -> Pod:
        """Its secret and its pod. Even if cancelled the answer to what was sent is waited for."""
        namespace, image = self._ground.namespace, plan.order.spec.image
        try:
            await self._server.begin(secrets_path(namespace), secret_body(plan))
            progress.secret = True
            pod = pod_from(await self._server.begin(pods_path(namespace), pod_body(plan)))
            progress.pod = True
            self._book.learn(pod)
        except Refused as refusal:
            if refusal.status == _CONFLICT:
                raise SandboxdError(
                    ErrorCode.CONFLICT, f"there is a box {plan.order.box_id} already"
                ) from refusal
            raise create_refused(refusal, image) from refusal
        except SandboxdError:
            progress.secret = progress.pod = True  # for all we know
            raise
        return pod

    async def _await_start(self, plan: PodPlan, uid: str) -> Pod:
        """Until the sandbox's container runs. Raises as `Backend.make`."""
        image, guest_image = plan.order.spec.image, plan.guest_image
        scope = anyio.CancelScope()

        def started(pod: Pod | None) -> Pod | None:
            if pod is None or pod.uid != uid or pod.is_going:
                death = Death(box_id=plan.order.box_id, detail="somebody deleted its pod")
                raise ended_early(death, image)
            if trouble := trouble_of(pod, image, guest_image):
                raise _NeverRan(trouble) if never_ran(pod, trouble) else trouble
            self._bound(scope, pod)
            return pod if pod.is_over or (pod.lives and pod.address) else None

        with scope:
            pod = await self._book.until(plan.name, started)
            if pod.is_over:
                error = ended_early(await self._judge.examine(record_of_pod(pod)), image)
                raise _NeverRan(error) if never_ran(pod, error) else error
            return pod
        raise await self._gave_up(plan)

    def _bound(self, scope: anyio.CancelScope, pod: Pod) -> None:
        """Less patience from when no node takes it, or its node fails at something."""
        if not pod.unschedulable and not is_stuck(pod):
            scope.deadline = math.inf
        elif scope.deadline == math.inf:
            patience_s = self._ground.settings.unschedulable_s if pod.unschedulable else _STUCK_S
            scope.deadline = anyio.current_time() + patience_s

    async def _gave_up(self, plan: PodPlan) -> SandboxdError:
        pod = self._book.get(plan.name)
        if pod is not None and pod.unschedulable:
            return no_room(pod.unschedulable)
        return await self._too_late(plan, _STUCK_S)

    async def _too_late(self, plan: PodPlan, patience_s: float) -> SandboxdError:
        """Why it was not ready in time, as far as the server says."""
        pod = self._book.get(plan.name)
        words: list[Word] = []
        with anyio.move_on_after(5, shield=True), suppress(SandboxdError, Refused):
            words = await self._judge.words(pod) if pod is not None else []
        if pod is None:
            pod = Pod(name=plan.name, uid="", box_id=plan.order.box_id)
        image = plan.order.spec.image
        return stuck(pod, image, plan.guest_image, words=words, patience_s=patience_s)

    async def _clean_up(
        self, box_id: str, progress: _Progress, *, within_s: float = _CLEANUP_S
    ) -> bool:
        """Only what we made: a box of the same id may be another's. Whether all of it is gone."""
        with anyio.move_on_after(within_s, shield=True), suppress(SandboxdError):
            if progress.pod:
                await self._remover.remove(box_id)
            elif progress.secret:
                await self._remover.remove_secret(object_name(self._tag, box_id))
            return True
        return False
