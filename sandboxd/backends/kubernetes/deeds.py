"""Notes on pods of which lease has them, written soon after the lease was told of.

No lease waits for the API server: a deed is written in the background, one after the other, and not
at all for a pod that goes before.
"""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import structlog

from sandboxd.backends.kubernetes.objects import deed_of, pods_path
from sandboxd.backends.kubernetes.records import record_of_reference
from sandboxd.backends.kubernetes.talking.server import ApiServer, Json, Refused
from sandboxd.backends.protocol import BoxRef
from sandboxd.errors import SandboxdError

log = structlog.get_logger(__name__)

_SOON_S = 1.0  # a lease that is shorter costs the server nothing
_WRITE_S = 20.0
_TRIES = 10
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_GONE = frozenset({404, 409})  # the pod, or the one of that uid
_DENIED = 403


@dataclass(slots=True, eq=False, kw_only=True)
class _Deed:
    """One that is due. at: when to write it, on the loop's clock."""

    path: str
    body: Json
    at: float
    tries: int = 0


class PodDeeds:
    """Those of one installation. Implements the seam's `Deeds`."""

    def __init__(self, server: ApiServer, *, namespace: str) -> None:
        self._server = server.lane(1)
        self._namespace = namespace
        self._due: dict[str, _Deed] = {}  # by box; no more than there are boxes
        self._bell = anyio.Event()
        self._denied = False

    def note(self, ref: BoxRef, *, lease_id: str, run_id: str, group_id: str) -> None:
        """See the protocol."""
        record = record_of_reference(ref)
        if self._denied or not record.name:
            return
        words = deed_of(lease_id=lease_id, run_id=run_id, group_id=group_id)
        self._due[ref.box_id] = _Deed(
            path=pods_path(self._namespace, record.name),
            body={"metadata": {"uid": record.uid, "annotations": words}},
            at=anyio.current_time() + _SOON_S,
        )
        self._bell.set()

    def drop(self, box_id: str) -> None:
        """The box goes: what is not written yet need not be."""
        self._due.pop(box_id, None)

    async def run(self) -> None:
        """Write what is due, until cancelled; what is unwritten then is noted at the next start."""
        while True:
            while not self._due:
                self._bell = anyio.Event()
                await self._bell.wait()
            box_id, deed = min(self._due.items(), key=lambda item: item[1].at)
            await anyio.sleep_until(deed.at)
            if self._due.get(box_id) is deed:
                await self._write(box_id, deed)

    async def _write(self, box_id: str, deed: _Deed) -> None:
        deed.tries += 1
        try:
            with anyio.fail_after(_WRITE_S):
                await self._server.patch(deed.path, deed.body)
        except Refused as refusal:
            self._refused(box_id, refusal)
        except (SandboxdError, TimeoutError) as error:
            pause_s = min(_FIRST_PAUSE_S * 2.0 ** (deed.tries - 1), _LONGEST_PAUSE_S)
            deed.at = anyio.current_time() + pause_s
            if deed.tries < _TRIES:
                return
            log.warning("deed.unwritten", box_id=box_id, error=str(error) or "timed out")
        self._due.pop(box_id, None)

    def _refused(self, box_id: str, refusal: Refused) -> None:
        if refusal.status in _GONE:
            return
        log.warning("deed.refused", box_id=box_id, status=refusal.status, error=refusal.detail)
        if refusal.status == _DENIED:  # for all of them: the role is not ours to change
            self._denied = True
            self._due.clear()
