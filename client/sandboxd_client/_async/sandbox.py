"""One sandbox, as its holder uses it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from sandboxd_client._async.api import AsyncApi
from sandboxd_client._async.ending import end_quietly
from sandboxd_client._async.files import AsyncFiles
from sandboxd_client._async.kernels.kernel import AsyncKernel, start_kernel
from sandboxd_client._async.process import AsyncProcess, run_to_end
from sandboxd_client._async.shell import AsyncShell
from sandboxd_client._async.streaming import (
    NDJSON,
    STREAM_SILENCE_S,
    follow_events,
    json_lines,
)
from sandboxd_client._core.calls import ROUND_S, Call, encode, path_of, silence_for
from sandboxd_client._core.fields import needed
from sandboxd_client._core.ids import fresh_id
from sandboxd_client._runtime import aio as runtime
from sandboxd_client._runtime.aio import AsyncOpening
from sandboxd_client.errors import SandboxdError
from sandboxd_client.events import ExecEvent
from sandboxd_client.options import Cmd, CommandOptions, command_body
from sandboxd_client.records import (
    ForwardInfo,
    KernelInfo,
    McpServerInfo,
    Readings,
    SandboxInfo,
    SandboxToken,
)
from sandboxd_client.results import ExecResult

_INLINE_STDIN_BYTES = 4 << 20  # beyond this, input travels raw instead of base64 in one JSON body


class AsyncSandbox:
    """A leased sandbox, by its id. Holds no connection; leaving its `with` releases the lease.

    granted: what the daemon told when it was leased, None for one that was attached to.
    """

    def __init__(
        self, api: AsyncApi, sandbox_id: str, *, granted: SandboxInfo | None = None
    ) -> None:
        self._api = api
        self.id = sandbox_id
        self.granted = granted
        self.files = AsyncFiles(api, sandbox_id=sandbox_id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    # ------------------------------------------------------------------------------- commands

    async def exec(
        self, cmd: Cmd, *, binary: bool = False, **options: Unpack[CommandOptions]
    ) -> ExecResult:
        """Run a command to its end: shell text for `/bin/sh -c`, or an argv.

        options: see CommandOptions (`env cwd user stdin timeout_s output_limit_bytes exec_id`).
        binary: the exact bytes of the output as well. However it ended, that is a result; raises
        the typed error when the sandbox or the call failed. Never runs twice. Cancelled: the
        command runs on under its deadline, and can be attached to by its `exec_id`.
        """
        stdin = options.get("stdin")
        if stdin is not None and len(stdin) > _INLINE_STDIN_BYTES:
            return await self._exec_with_long_input(cmd, stdin, binary=binary, options=options)
        exec_id = options.get("exec_id") or fresh_id("exec")
        query = {"wait_s": ROUND_S, "encoding": "base64" if binary else None}
        return await run_to_end(
            self._api,
            self.process(exec_id),
            path=path_of("sandboxes", self.id, "execs", query=query),
            body=command_body(cmd, options, exec_id=exec_id),
            binary=binary,
        )

    def stream(
        self, cmd: Cmd, **options: Unpack[CommandOptions]
    ) -> AsyncGenerator[ExecEvent, None]:
        """Run a command and yield its events as they happen: Started, Stdout, Stderr, Gap, Ended.

        The last one is Ended and has the result. A cut line is attached to again, each event
        comes once. Raises the typed error where the sandbox failed: it never just stops. To leave
        early, use `aclosing`; the command runs on.
        """
        exec_id = options.get("exec_id") or fresh_id("exec")
        call = Call(
            method="POST",
            path=path_of("sandboxes", self.id, "execs"),
            body=encode(command_body(cmd, options, exec_id=exec_id)),
            accept=NDJSON,
            safe=True,
            silence_s=STREAM_SILENCE_S,
        )
        events_path = path_of("sandboxes", self.id, "execs", exec_id, "events")
        return follow_events(self._api, first=call, events_path=events_path)

    async def start(self, cmd: Cmd, **options: Unpack[CommandOptions]) -> AsyncProcess:
        """Start a command and return at once. `stdin_open=True` keeps its input open."""
        exec_id = options.get("exec_id") or fresh_id("exec")
        body = {**command_body(cmd, options, exec_id=exec_id), "detach": True}
        path = path_of("sandboxes", self.id, "execs")
        await self._api.json(Call(method="POST", path=path, body=encode(body), safe=True))
        return self.process(exec_id)

    def process(self, exec_id: str) -> AsyncProcess:
        """A command that was started before, by its id. Asks nothing yet."""
        return AsyncProcess(self._api, sandbox_id=self.id, exec_id=exec_id)

    async def execs(self, *, state: str | None = None) -> list[ExecResult]:
        """The commands of this sandbox, newest first, without their output."""
        path = ("sandboxes", self.id, "execs")
        found = await every_page(self._api, path, "execs", query={"state": state})
        return [ExecResult.from_json(told) for told in found]

    def shell(
        self,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
    ) -> AsyncOpening[AsyncShell]:
        """A shell that remembers directory, variables and functions. `await` it, or enter it."""
        return AsyncOpening(self._open_shell({"cwd": cwd, "env": env, "user": user}))

    # ------------------------------------------------------------------------------- kernels

    def kernel(
        self,
        spec: str = "python3",
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        kernel_id: str | None = None,
    ) -> AsyncOpening[AsyncKernel]:
        """A Jupyter kernel that takes cells. `await` it, or enter it to have it shut down as well.

        A sandbox whose template keeps one running gives that one. spec: a kernelspec of the image.
        env: on top of the sandbox's. cwd: relative to the workdir. kernel_id: the caller's own id;
        the same id gives the same kernel. Raises StartFailed, with fault task where the image
        lacks it.
        """
        given = {"spec": spec, "env": env and dict(env), "cwd": cwd, "kernel_id": kernel_id}
        return AsyncOpening(start_kernel(self._api, self.id, given))

    def get_kernel(self, kernel_id: str) -> AsyncKernel:
        """A kernel that was started before, by its id. Asks nothing yet."""
        return AsyncKernel(self._api, sandbox_id=self.id, kernel_id=kernel_id)

    async def kernels(self) -> list[KernelInfo]:
        """The kernels of this sandbox, newest first."""
        found = await every_page(self._api, ("sandboxes", self.id, "kernels"), "kernels", query={})
        return [KernelInfo.from_json(told) for told in found]

    def jupyter_url(self, *, token: SandboxToken | None = None) -> str:
        """Where Jupyter's own clients find its kernels: give it as the URL of a kernel gateway.

        token: one of `token()`; then the address needs no key. Else requests, and the WebSocket's
        too, carry `Authorization: Bearer KEY`.
        """
        below = token.url if token is not None else self._api.url + path_of("sandboxes", self.id)
        return f"{below}/jupyter"

    # ------------------------------------------------------------------------------- MCP servers

    def mcp_url(self, name: str, *, token: SandboxToken | None = None) -> str:
        """Where clients of MCP find one of its servers, by streamable HTTP.

        token: one of `token()`; then the address needs no key. Else requests carry
        `Authorization: Bearer KEY`.
        """
        below = token.url if token is not None else self._api.url + path_of("sandboxes", self.id)
        return f"{below}/mcp/{name}"

    def mcp(self, name: str, **options: Any) -> AbstractAsyncContextManager[Any]:
        """A session of the `mcp` package with one of its servers; enter it, it is open then.

        options: of `mcp.Client`, like `sampling_callback`. Needs `pip install sandboxd[mcp]`:
        raises ImportError without.
        """
        return runtime.mcp_session(self.mcp_url(name), self._api.authorization, options)

    async def mcp_servers(self) -> list[McpServerInfo]:
        """Its MCP servers, in the order of their declaration. Is no use."""
        call = Call(method="GET", path=path_of("sandboxes", self.id, "mcp"), safe=True)
        told = await self._api.json(call)
        return [McpServerInfo.from_json(each) for each in needed(told, "mcp_servers")]

    # ------------------------------------------------------------------------------- the lease

    async def info(self, *, wait_s: float | None = None) -> SandboxInfo:
        """How the sandbox and its lease stand.

        wait_s: wait that long for it to be leased or ended.
        """
        path = path_of("sandboxes", self.id, query={"wait_s": wait_s})
        call = Call(method="GET", path=path, safe=True, silence_s=silence_for(wait_s))
        return SandboxInfo.from_json(await self._api.json(call))

    async def readings(self) -> Readings:
        """What it uses now, measured inside: processor time, memory, processes. Is no use."""
        call = Call(method="GET", path=path_of("sandboxes", self.id, "readings"), safe=True)
        return Readings.from_json(await self._api.json(call))

    async def renew(self, timeout_s: float | None = None) -> SandboxInfo:
        """Let the lease end `timeout_s` from now; None means as late as the template allows."""
        call = Call(
            method="POST",
            path=path_of("sandboxes", self.id, "renew"),
            body=encode({"timeout_s": timeout_s}),
            safe=True,
            ends=True,
        )
        return SandboxInfo.from_json(await self._api.json(call))

    async def begin_grading(self, timeout_s: float) -> SandboxInfo:
        """End what runs in it and keep it `timeout_s` more, for whoever grades what is left.

        Files stay, new commands run, its idle clock stands still and a lost run does not end it.
        Raises Conflict the second time.
        """
        path = path_of("sandboxes", self.id, "grading")
        call = Call(method="POST", path=path, body=encode({"timeout_s": timeout_s}))
        return SandboxInfo.from_json(await self._api.json(call))

    async def release(self, *, wait_s: float | None = None) -> SandboxInfo:
        """Give the sandbox back; what runs in it ends. Idempotent.

        wait_s: wait that long until it is gone from the machine.
        """
        path = path_of("sandboxes", self.id, query={"wait_s": wait_s})
        ends = not wait_s  # one that waits is not short
        call = Call(method="DELETE", path=path, safe=True, silence_s=silence_for(wait_s), ends=ends)
        return SandboxInfo.from_json(await self._api.json(call))

    async def token(
        self, rights: Literal["use", "read"] = "use", *, ttl_s: float = 3600
    ) -> SandboxToken:
        """A key for this sandbox alone, that can neither lease, renew nor release."""
        call = Call(
            method="POST",
            path=path_of("sandboxes", self.id, "tokens"),
            body=encode({"rights": rights, "ttl_s": ttl_s}),
        )
        return SandboxToken.from_json(await self._api.json(call))

    def port_url(self, port: int, path: str = "/", *, token: SandboxToken | None = None) -> str:
        """Where a server inside is reached: HTTP, and WebSockets with `ws` in place of `http`.

        token: one of `token()`; then the address needs no key, and opens in a browser. Else
        requests carry `Authorization: Bearer KEY`. Nobody listens there yet: 502, `conflict`.
        """
        below = token.url if token is not None else self._api.url + path_of("sandboxes", self.id)
        return f"{below}/ports/{port}/{path.removeprefix('/')}"

    async def set_network(self, network: str | Mapping[str, Any]) -> SandboxInfo:
        """Change what it may reach; connections that no longer may be are closed.

        Programs find a proxy by variables that are set with the lease: give one that began with
        none the address in `SandboxInfo.proxy`.
        """
        path = path_of("sandboxes", self.id, "network")
        call = Call(method="PUT", path=path, body=encode({"network": network}), safe=True)
        return SandboxInfo.from_json(await self._api.json(call))

    async def forward(
        self, port: int, url: str, *, headers: Mapping[str, str] | None = None
    ) -> list[ForwardInfo]:
        """Have a port inside, on 127.0.0.1, reach one address outside, and nothing else.

        url: `http://`, `https://` or `tcp://`. headers: added to each request outside, where nobody
        inside sees them. Returns all forwards; one with the same port was replaced.
        """
        order = {"url": url, "headers": dict(headers or {})}
        path = path_of("sandboxes", self.id, "forwards")
        body = encode({"forwards": {str(port): order}})
        told = await self._api.json(Call(method="POST", path=path, body=body, safe=True))
        return [ForwardInfo.from_json(each) for each in needed(told, "forwards")]

    async def forwards(self) -> list[ForwardInfo]:
        """All forwards, by port."""
        path = path_of("sandboxes", self.id, "forwards")
        told = await self._api.json(Call(method="GET", path=path, safe=True))
        return [ForwardInfo.from_json(each) for each in needed(told, "forwards")]

    async def end_forward(self, port: int) -> None:
        """End a forward, and the connections through it."""
        path = path_of("sandboxes", self.id, "forwards", str(port))
        await self._api.json(Call(method="DELETE", path=path))

    async def logs(self) -> AsyncGenerator[dict[str, Any], None]:
        """What happened to the sandbox, entry by entry: set-up output, starts, ends, faults."""
        call = Call(
            method="GET", path=path_of("sandboxes", self.id, "logs"), accept=NDJSON, safe=True
        )
        lines = json_lines(self._api, call)
        try:
            async for entry in lines:
                yield entry
        finally:
            await lines.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await end_quietly(repr(self), self.release)

    # ------------------------------------------------------------------------------- inner parts

    async def _open_shell(self, options: dict[str, Any]) -> AsyncShell:
        body = {name: value for name, value in options.items() if value is not None}
        body["shell_id"] = fresh_id("shell")
        path = path_of("sandboxes", self.id, "shells")
        told = await self._api.json(Call(method="POST", path=path, body=encode(body), safe=True))
        return AsyncShell(self._api, sandbox_id=self.id, shell_id=needed(told, "shell_id"))

    async def _exec_with_long_input(
        self, cmd: Cmd, stdin: bytes | str, *, binary: bool, options: CommandOptions
    ) -> ExecResult:
        started: CommandOptions = {**options, "stdin": None, "stdin_open": True}
        process = await self.start(cmd, **started)
        try:
            await process.write(stdin)
            await process.close_stdin()
        except SandboxdError as error:
            # A command may end, or close its input, before it has read all: its end says how.
            if error.status not in {409, 410}:
                raise
        return await process.wait(binary=binary)


async def every_page(
    api: AsyncApi, path: tuple[str, ...], name: str, *, query: dict[str, Any]
) -> list[dict[str, Any]]:
    """All objects of a list, page by page."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        target = path_of(*path, query={**query, "limit": 1000, "cursor": cursor})
        page = await api.json(Call(method="GET", path=target, safe=True))
        found += needed(page, name)
        cursor = page.get("next_cursor")
        if not cursor:
            return found
