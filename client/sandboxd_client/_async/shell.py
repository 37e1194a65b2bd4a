"""A shell that remembers: directory, variables, functions."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from sandboxd_client._async.api import AsyncApi
from sandboxd_client._async.ending import end_quietly
from sandboxd_client._async.process import AsyncProcess, run_to_end
from sandboxd_client._core.calls import ROUND_S, Call, path_of
from sandboxd_client._core.ids import fresh_id
from sandboxd_client.results import ExecResult


class AsyncShell:
    """One bash (else sh) in a sandbox. Leaving its `with` ends it; so does the sandbox's end."""

    def __init__(self, api: AsyncApi, *, sandbox_id: str, shell_id: str) -> None:
        self._api = api
        self._sandbox_id = sandbox_id
        self.shell_id = shell_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shell_id}>"

    async def run(
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
        return await run_to_end(
            self._api,
            AsyncProcess(self._api, sandbox_id=self._sandbox_id, exec_id=exec_id),
            path=path_of(*self._parts, "run", query=query),
            body={name: value for name, value in body.items() if value is not None},
            binary=binary,
        )

    async def state(self) -> str:
        """`idle`, `busy` or `ended`."""
        call = Call(method="GET", path=path_of(*self._parts), safe=True)
        return str((await self._api.json(call)).get("state"))

    async def aclose(self) -> None:
        """End the shell and what runs in it. Idempotent."""
        call = Call(method="DELETE", path=path_of(*self._parts), safe=True, ends=True)
        await self._api.json(call)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await end_quietly(repr(self), self.aclose)

    @property
    def _parts(self) -> tuple[str, ...]:
        return ("sandboxes", self._sandbox_id, "shells", self.shell_id)
