"""Why a box died: gathers what its control group, the kernel and the engine still say. Judges
nothing itself.

What is read first is gone first: the group's counters, then the engine's memory of the container.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from sandboxd.backends.docker.engine import Engine, EngineRefused
from sandboxd.backends.docker.records import BoxRecord
from sandboxd.backends.docker.refusals import call_refused
from sandboxd.backends.docker.watching.living import LivingBox
from sandboxd.backends.parts.deaths import Evidence, judge, rebooted
from sandboxd.backends.parts.kernel_word import at_own_limit
from sandboxd.backends.protocol import Death
from sandboxd.errors import SandboxdError
from sandboxd.linux.group_readings import GroupReadings
from sandboxd.linux.processes import boot_id
from sandboxd.wire.codes import ErrorCode

_WORD_S = 2.0  # for the engine to tell of a death, after it
_RECORD_S = 5.0  # for it to write the end down
_AGAIN_S = 0.02
_OWN_CODES = range(64, 80)  # a guest that ended by itself; no engine does so


class Stream(Protocol):
    """The engine's events, as far as it matters here whether they flow."""

    @property
    def flows(self) -> bool:
        """Whether they are heard at this moment."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Remains:
    """What the engine still knows. exit_code None: nothing of the end."""

    exit_code: int | None = None
    removed: bool = False
    restarted: bool = False


class Judge:
    """Examines the dead of one engine."""

    def __init__(self, engine: Engine, events: Stream) -> None:
        self._engine = engine
        self._events = events

    async def examine(self, record: BoxRecord, box: LivingBox | None = None) -> Death:
        """Why a dead box died. box: as it was watched, None if nobody did.

        Raises `backend_unavailable` where nobody watched and the engine does not answer: then
        even the death is not certain.
        """
        if box is not None and box.verdict is not None:
            return box.verdict
        if record.process is not None and record.process.boot_id != boot_id():
            return rebooted(record.box_id)
        if box is None:
            return await self._examine_remains(record)
        broke = not self._events.flows
        kills_before, hits_before = box.ooms.before(end=anyio.current_time())
        group = _read(box)
        with anyio.move_on_after(_WORD_S):
            await box.word.dead.wait()
        remains = await self._remains_or_none(record)
        own = remains is not None and remains.exit_code in _OWN_CODES
        if not own:
            broke = broke or remains is None or not await self._engine.answers()
        remains = remains or _Remains()
        return judge(
            Evidence(
                box_id=record.box_id,
                exit_code=remains.exit_code,
                at_own_limit=await _log_says(record, remains),
                oom_kills=group.oom_kills,
                oom_kills_before=kills_before,
                limit_hits=group.limit_hits,
                limit_hits_before=hits_before,
                memory_peak_bytes=group.memory_peak_bytes,
                memory_limit_bytes=record.memory_limit_bytes,
                asked_signals=tuple(box.word.signals),
                was_removed=remains.removed or box.word.removed,
                engine_broke=broke,
            )
        )

    async def _examine_remains(self, record: BoxRecord) -> Death:
        remains = await self._remains(record)
        if remains.restarted:
            return Death(
                box_id=record.box_id,
                detail="somebody started its container anew, and what ran in it is gone",
            )
        return judge(
            Evidence(
                box_id=record.box_id,
                exit_code=remains.exit_code,
                at_own_limit=await _log_says(record, remains),
                was_removed=remains.removed,
            )
        )

    async def _remains_or_none(self, record: BoxRecord) -> _Remains | None:
        try:
            return await self._remains(record)
        except SandboxdError as error:
            if error.code is not ErrorCode.BACKEND_UNAVAILABLE:
                raise
            return None

    async def _remains(self, record: BoxRecord) -> _Remains:
        """What the engine knows, once it knows of the end. Raises `backend_unavailable`."""
        with anyio.move_on_after(_RECORD_S):
            while True:
                remains = await self._look(record)
                if remains is not None:
                    return remains
                await anyio.sleep(_AGAIN_S)  # it writes the end down a moment after it
        return _Remains()

    async def _look(self, record: BoxRecord) -> _Remains | None:
        """None while the engine takes its process for a living one."""
        if not record.container_id:
            return _Remains(removed=True)
        try:
            facts: dict[str, Any] = await self._engine.call(
                self._engine.api.inspect_container, record.container_id
            )
        except EngineRefused as refusal:
            if refusal.status == 404:
                return _Remains(removed=True)
            raise call_refused(refusal) from refusal
        state = facts["State"]
        if not state["Running"]:
            return _Remains(exit_code=int(state["ExitCode"]))
        return _Remains(restarted=True) if _is_another(record, state) else None


def _is_another(record: BoxRecord, state: dict[str, Any]) -> bool:
    """Whether what runs is not what ran: the container was started anew."""
    if record.process is not None:
        return bool(state["Pid"] != record.process.pid)
    return record.address is not None and bool(state["StartedAt"] != record.address.started_at)


async def _log_says(record: BoxRecord, remains: _Remains) -> bool | None:
    return await at_own_limit(record.process, record.container_id, exit_code=remains.exit_code)


def _read(box: LivingBox) -> GroupReadings:
    """As of now; as of the last look where the engine has taken the group away by now.

    At once, and in the loop's own thread: the engine takes it away within milliseconds, which is
    how long a thread of a busy machine waits for its turn. The kernel's files do not block.
    """
    read = GroupReadings() if box.group is None else box.group.read()
    return box.last if read.oom_kills is None else read
