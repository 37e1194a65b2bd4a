"""The fake maker of boxes: the seam's six verbs in memory, with faults by script."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream, TaskGroup, TaskStatus

from sandboxd.backends.fake.box import FakeBox
from sandboxd.backends.fake.faults import Faults, Mishap
from sandboxd.backends.fake.images import FakeImages
from sandboxd.backends.fake.settings import FakeSettings
from sandboxd.backends.parts.deaths import Evidence, judge
from sandboxd.backends.parts.watchers import Watchers
from sandboxd.backends.protocol import (
    BoxOrder,
    BoxRef,
    Capabilities,
    Death,
    Deeds,
    Images,
    LimitKind,
    OwnedBox,
    Readings,
)
from sandboxd.errors import SandboxdError
from sandboxd.model.template import BoxSpec
from sandboxd.wire.codes import END_VERDICTS, EndReason, ErrorCode, Fault

_NAME = "fake"


class FakeBackend:
    """Boxes in memory. Enter it by `open_fake`; `faults` scripts what goes wrong."""

    name = _NAME

    def __init__(self, settings: FakeSettings, group: TaskGroup) -> None:
        self.faults = Faults()
        self._settings = settings
        self._group = group
        self._boxes: dict[str, FakeBox] = {}
        self._watchers = Watchers()
        self._images = FakeImages(
            settings, self.faults, orders=lambda: [box.order for box in self._boxes.values()]
        )
        self.images: Images | None = self._images
        self.deeds: Deeds | None = None

    def capabilities(self) -> Capabilities:
        """It bounds disk alone, and runs scripted programs as one user."""
        none = LimitKind.NONE
        return Capabilities(
            limits={"cpu": none, "memory": none, "pids": none, "disk": LimitKind.ENFORCED},
            networks=frozenset({"none"}),
            images="any name" if self._settings.images is None else "a name of its settings",
            orphan_s=self._settings.orphan_limit_s,
            programs="scripted",
            notes=("The fake keeps boxes in memory and isolates nothing: it is for tests.",),
        )

    async def make(self, order: BoxOrder) -> BoxRef:
        """Make a box, or meet the fault that was scripted next."""
        fate = self.faults.take_make()
        self._check(order)
        if fate is not None:
            if fate.error is not None:
                await anyio.lowlevel.checkpoint()
                raise fate.error
            try:
                await anyio.sleep_forever()
            finally:
                if fate.mishap is Mishap.LATE:
                    self._begin(order)
        await anyio.sleep(self._settings.start_s)
        return await self._born(order)

    async def dispose(self, ref: BoxRef) -> None:
        """Remove a box; gone already is success."""
        await self.dispose_remains(ref.box_id)

    async def dispose_remains(self, box_id: str) -> None:
        """Remove a box by its id alone."""
        await anyio.lowlevel.checkpoint()
        box = self._boxes.pop(box_id, None)
        if box is not None:
            box.end()

    async def look(self, ref: BoxRef) -> Death | None:
        """None while it lives."""
        await anyio.lowlevel.checkpoint()
        box = self._boxes.get(ref.box_id)
        if box is None:
            return Death(box_id=ref.box_id, detail="the box is gone")
        return box.death

    async def list_owned(self) -> list[OwnedBox]:
        """All that is here, dead ones that nobody disposed of among them."""
        await anyio.lowlevel.checkpoint()
        return [
            OwnedBox(
                box_id=box_id,
                labels=dict(box.order.labels),
                ref=_ref(box_id),
                alive=box.death is None,
            )
            for box_id, box in self._boxes.items()
        ]

    async def connect(self, ref: BoxRef) -> ByteStream:
        """A fresh line to the guest. Raises `sandbox_lost` if the box is dead."""
        await anyio.lowlevel.checkpoint()
        box = self._boxes.get(ref.box_id)
        if box is None or box.death is not None:
            raise SandboxdError(ErrorCode.SANDBOX_LOST, "the box is dead")
        return box.connect()

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Death]]:
        """Deaths from now on."""
        return self._watchers.join()

    async def read(self, ref: BoxRef) -> Readings:
        """Nothing can be read from outside."""
        await anyio.lowlevel.checkpoint()
        return Readings()

    def die(self, box_id: str, reason: EndReason = EndReason.DIED, *, fault: Fault | None = None,
            detail: str = "scripted") -> None:  # fmt: skip
        """End a box now, with that evidence; watchers are told."""
        verdict = END_VERDICTS[reason]
        blamed = fault or verdict.fault or Fault.UNKNOWN
        mask = verdict.mask if fault is None else fault is not Fault.AGENT
        self._end(Death(box_id=box_id, reason=reason, fault=blamed, mask=mask, detail=detail))

    def vanish(self, box_id: str) -> None:
        """A box is gone from one moment to the next: no evidence, no word to watchers."""
        box = self._boxes.pop(box_id)
        box.end(Death(box_id=box_id, detail="the box is gone"))

    def drop_connections(self, box_id: str | None = None) -> None:
        """Cut the lines to one box, or to all; what runs inside goes on."""
        for box in self._boxes.values():
            if box_id in {None, box.order.box_id}:
                box.drop_lines()

    async def _born(self, order: BoxOrder) -> BoxRef:
        box = FakeBox(order, self._settings, self.faults)
        self._boxes[order.box_id] = box
        # Shielded and without a wait of its own: a box that was begun is one that can be listed.
        with anyio.CancelScope(shield=True):
            await self._group.start(self._live, box, name=f"box {order.box_id}")
        return _ref(order.box_id)

    def _begin(self, order: BoxOrder) -> None:
        box = FakeBox(order, self._settings, self.faults)
        self._boxes[order.box_id] = box
        self._group.start_soon(self._live, box, name=f"box {order.box_id}")

    async def _live(
        self, box: FakeBox, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        code = await box.live(task_status=task_status)
        if code is not None:
            self._end(judge(Evidence(box_id=box.order.box_id, exit_code=code)))

    def _end(self, death: Death) -> None:
        box = self._boxes.get(death.box_id)
        if box is not None and box.death is None:
            box.end(death)
            self._watchers.tell(death)

    def _check(self, order: BoxOrder) -> None:
        spec = order.spec
        if order.box_id in self._boxes:
            raise SandboxdError(ErrorCode.CONFLICT, f"there is a box {order.box_id} already")
        self._images.use(spec.image)
        if wanted := _not_supported(spec):
            raise SandboxdError(ErrorCode.NOT_SUPPORTED, f"the fake has no {wanted}")


def _not_supported(spec: BoxSpec) -> str:
    asked: dict[str, Any] = {
        f"network {spec.network.kind!r}": spec.network.kind != "none",
        f"runtime {spec.runtime!r}": spec.runtime,
        "gpu": spec.resources.gpu,
        "mounts": spec.mounts,
    }
    return next((name for name, wanted in asked.items() if wanted), "")


def _ref(box_id: str) -> BoxRef:
    return BoxRef(backend=_NAME, box_id=box_id)


@asynccontextmanager
async def open_fake(settings: FakeSettings | None = None) -> AsyncIterator[FakeBackend]:
    """A fake backend; leaving ends every box."""
    async with anyio.create_task_group() as group:
        try:
            yield FakeBackend(settings or FakeSettings(), group)
        finally:
            group.cancel_scope.cancel()
