# Generated from client/sandboxd_client/_async/shell.py by scripts/unasync.py.
# Edit the source, then run the script.
"""A shell that remembers: directory, variables, functions."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from sandboxd_client._core.calls import ROUND_S, Call, path_of
from sandboxd_client._core.ids import fresh_id
from sandboxd_client._sync.api import Api
from sandboxd_client._sync.ending import end_quietly
from sandboxd_client._sync.process import Process, run_to_end
from sandboxd_client.results import ExecResult


class Shell:
    """One bash (else sh) in a sandbox. Leaving its `with` ends it; so does the sandbox's end."""

    def __init__(self, api: Api, *, sandbox_id: str, shell_id: str) -> None:
        self._api = api
        self._sandbox_id = sandbox_id
        self.shell_id = shell_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shell_id}>"

    def run(
        self,
        text: str,
        *,
        timeout_s: float | None = None,
        exec_id: str | None = None,
        binary: bool = False,
    ) -> ExecResult:
        """Run shell text in it and wait for its end.

        At the deadline what runs in the foreground is ended, the shell only if that fails. A text
        that ends the shell (`exit`, `set -e`) gives a result with `shell_ended`. Raises Conflict
        when the shell has ended, or is running something else.
        """
        exec_id = exec_id or fresh_id("exec")
        body = {"text": text, "timeout_s": timeout_s, "exec_id": exec_id}
        query = {"wait_s": ROUND_S, "encoding": "base64" if binary else None}
        return run_to_end(
            self._api,
            Process(self._api, sandbox_id=self._sandbox_id, exec_id=exec_id),
            path=path_of(*self._parts, "run", query=query),
            body={name: value for name, value in body.items() if value is not None},
            binary=binary,
        )

    def state(self) -> str:
        """`idle`, `busy` or `ended`."""
        call = Call(method="GET", path=path_of(*self._parts), safe=True)
        return str((self._api.json(call)).get("state"))

    def close(self) -> None:
        """End the shell and what runs in it. Idempotent."""
        call = Call(method="DELETE", path=path_of(*self._parts), safe=True, ends=True)
        self._api.json(call)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end_quietly(repr(self), self.close)

    @property
    def _parts(self) -> tuple[str, ...]:
        return ("sandboxes", self._sandbox_id, "shells", self.shell_id)
