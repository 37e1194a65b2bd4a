"""The classic environments' Python tool on a kernel of the sandbox: no worker to start, nothing to
install, one request a call.
"""

from __future__ import annotations

import contextlib
from typing import Any

import verifiers as vf

from sandboxd_client import AsyncKernel, AsyncSandbox, AsyncSandboxd, SandboxdError
from sandboxd_client.options import LeaseOptions

_HIDDEN = ["state"]


class KernelPythonEnv(vf.StatefulToolEnv):
    """An environment whose `python` tool keeps its variables for the length of a rollout.

    template: what to lease; one that keeps kernels running answers the first call in milliseconds.
    timeout_s: of one call, after which it is interrupted and told so. lease: see LeaseOptions.
    A failure of the sandbox raises vf.SandboxError, which stops the rollout.
    """

    def __init__(
        self,
        template: str = "python",
        *,
        timeout_s: float = 30.0,
        lease: LeaseOptions | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(stop_errors=[vf.SandboxError], **kwargs)
        self._template = template
        self._timeout_s = timeout_s
        self._lease = lease or LeaseOptions()
        self._client = AsyncSandboxd()
        self.add_tool(self.python, args_to_skip=_HIDDEN)

    async def setup_state(self, state: vf.State, **kwargs: Any) -> vf.State:
        """Lease a sandbox for the rollout, and have its kernel."""
        try:
            box = await self._client.lease(self._template, **self._lease)
            state["sandbox_id"] = box.id
            state["kernel_id"] = (await box.kernel()).kernel_id
        except SandboxdError as error:
            raise vf.SandboxError(str(error)) from error
        return await super().setup_state(state, **kwargs) or state

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Any, state: vf.State, **_: Any
    ) -> dict[str, Any]:
        """The tool is told of its rollout, which the model does not see."""
        return {**tool_args, "state": state} if tool_name == "python" else tool_args

    async def python(self, code: str, state: vf.State) -> str:
        """Execute `code` inside a persistent Python REPL."""
        try:
            cell = await self._kernel(state).execute(code, timeout_s=self._timeout_s)
        except SandboxdError as error:
            raise vf.SandboxError(str(error)) from error
        if cell.mask:
            raise vf.SandboxError(f"the call ended {cell.outcome}, by no doing of its own")
        late = f"\nError: the call timed out after {self._timeout_s:g}s"
        return (cell.text + (late if cell.outcome == "timeout" else "")).strip() or "(no output)"

    @vf.cleanup
    async def release_sandbox(self, state: vf.State) -> None:
        """Give the sandbox back; what fails here its clocks mend."""
        if "sandbox_id" in state:
            with contextlib.suppress(SandboxdError):
                await self._box(state).release()

    @vf.teardown
    async def close_client(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    def _box(self, state: vf.State) -> AsyncSandbox:
        return self._client.sandbox(state["sandbox_id"])

    def _kernel(self, state: vf.State) -> AsyncKernel:
        return self._box(state).get_kernel(state["kernel_id"])
