# Generated from client/sandboxd_client/_async/leasing.py by scripts/unasync.py.
# Edit the source, then run the script.
"""Getting a lease: one request when stock is warm, else rounds of waiting.

Cancelled at any point, it leaves nothing waiting or leased behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandboxd_client._core.calls import ROUND_S, SILENCE_S, Call, encode, path_of
from sandboxd_client._core.fields import needed
from sandboxd_client._core.ids import fresh_id
from sandboxd_client._core.retries import Patience
from sandboxd_client._runtime import sio as runtime
from sandboxd_client._sync.api import Api
from sandboxd_client.errors import ApiUnreachable, Capacity, SandboxdError, error_from_end
from sandboxd_client.options import LeaseOptions, lease_body
from sandboxd_client.records import SandboxInfo

WAIT_S = 60.0  # the contract's default for `wait_timeout_s`

_ABANDON_S = 10.0
_GRACE_S = 10.0  # beyond the caller's deadline, for an answer that is on its way
_WAITING = frozenset({"queued", "making"})


class Place:
    """One request for a lease, from the first try until it is granted, refused or given up.

    With a key of our own the daemon answers at once, with the sandbox if stock is warm, else with
    its id to wait for: so there is always something to give back. With the caller's key it answers
    when all is done, and a refusal leaves that key free for the caller's next try.
    """

    def __init__(self, api: Api, template: str | None, options: LeaseOptions) -> None:
        wait_s = options.get("wait_timeout_s")
        self._api = api
        self._wait_s = WAIT_S if wait_s is None else wait_s
        self._own_key = not options.get("idempotency_key")
        self._body = lease_body(template, options, key=options.get("idempotency_key") or "")
        if self._own_key:
            self._body |= {"wait": False, "idempotency_key": fresh_id("lease")}
        self._sandbox_id: str | None = None
        self._settled = False  # nothing of ours can be waiting, or leased, at the daemon

    def granted(self) -> SandboxInfo:
        """Wait for the lease. Raises the typed error when there is none within the wait.

        Cancelled, or with the answer lost for good: what the daemon may have given is given back,
        unless the caller chose the key and so can ask for it again.
        """
        deadline = runtime.now() + self._wait_s
        try:
            return self._until(deadline)
        except BaseException:
            if self._own_key and not self._settled:
                with runtime.shielded(_ABANDON_S):
                    self._give_back()
            raise

    def _until(self, deadline: float) -> SandboxInfo:
        patience = Patience(deadline=deadline)
        while True:
            try:
                return self._one_try(deadline)
            except SandboxdError as error:
                # What the daemon answers it has done with; what got lost may be waiting.
                self._settled = self._settled or _is_an_answer(error)
                if isinstance(error, ApiUnreachable):
                    raise  # was tried for long enough one level below
                pause = patience.pause(error, safe=True, now=runtime.now())
                if pause is None:
                    raise
            runtime.sleep(pause)
            if self._settled and self._own_key:
                self._start_anew(deadline)

    def _start_anew(self, deadline: float) -> None:
        """Ask for another sandbox in the time that is left: the last one came to nothing."""
        left_s = max(0.0, deadline - runtime.now())
        self._body |= {"wait_timeout_s": left_s, "idempotency_key": fresh_id("lease")}
        self._sandbox_id, self._settled = None, False

    def _one_try(self, deadline: float) -> SandboxInfo:
        told = self._ask(deadline=deadline)
        while needed(told, "state") in _WAITING:
            self._sandbox_id = needed(told, "id")
            if runtime.now() > deadline + _GRACE_S:
                raise Capacity("no sandbox became free in time", problem=_queue_of(told))
            path = path_of("sandboxes", needed(told, "id"), query={"wait_s": ROUND_S})
            told = self._api.json(Call(method="GET", path=path, safe=True))
        if told["state"] in {"ending", "ended"}:
            self._settled = True
            raise error_from_end(told.get("end") or {}, sandbox_id=needed(told, "id"))
        return SandboxInfo.from_json(told)

    def _ask(self, *, deadline: float) -> dict[str, Any]:
        silence_s = SILENCE_S if self._own_key else max(SILENCE_S, self._wait_s + _GRACE_S)
        call = Call(
            method="POST",
            path=path_of("sandboxes"),
            body=encode(self._body),
            safe=True,
            silence_s=silence_s,
        )
        patient_until = runtime.now() + self._api.patience_s
        return self._api.json(call, deadline=min(deadline, patient_until))

    def _give_back(self) -> None:
        """Release what the daemon may have given us; if that fails, the lease's clocks will."""
        try:
            if self._sandbox_id is None:
                # The answer that had the id was lost; under the same key it comes again.
                told = self._ask(deadline=runtime.now() + _ABANDON_S)
                self._sandbox_id = needed(told, "id")
            path = path_of("sandboxes", str(self._sandbox_id))
            self._api.json(Call(method="DELETE", path=path, safe=True))
        except SandboxdError:
            return


def _is_an_answer(error: SandboxdError) -> bool:
    return error.retry_safe or not isinstance(error, ApiUnreachable)


def _queue_of(told: Mapping[str, Any]) -> dict[str, Any]:
    return {"details": dict(told.get("queue") or {}), "sandbox_id": told.get("id")}
