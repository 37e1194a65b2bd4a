"""A runtime of verifiers 0.4 whose box is a leased sandbox, through the SDK.

Commands are durable: they live on through a restart of the daemon, and are attached to again. What
is no doing of the agent's raises SandboxError, on which trainers reschedule, and is never a result.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - verifiers runs on it, and on nothing else
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar, Unpack
from urllib.parse import urlsplit

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from verifiers.v1.errors import SandboxError
from verifiers.v1.runtimes import (
    PrimeConfig,
    PrimeRuntimeInfo,
    ProgramResult,
    Runtime,
    RuntimeProcess,
    register,
)

from sandboxd_client import (
    AsyncProcess,
    AsyncSandbox,
    AsyncSandboxd,
    Ended,
    ExecResult,
    FileNotFound,
    Sandboxd,
    SandboxdError,
    Stderr,
    Stdout,
)
from sandboxd_client.options import LeaseOptions

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_Sink = MemoryObjectSendStream[bytes]
_OUTPUT_BYTES = 16 << 20
_PIECES = 1024  # of a process's output that nobody has read yet; then its reader is waited for


@asynccontextmanager
async def runtime(
    template: str,
    *,
    client: AsyncSandboxd | None = None,
    trainer_host: str = "127.0.0.1",
    **lease: Unpack[LeaseOptions],
) -> AsyncIterator[SandboxdRuntime]:
    """A box for `agent.run(task, runtime=box)`, leased until the block is left.

    client: whose connections it shares; one of its own else. trainer_host: how the daemon reaches
    this machine, where the interception server and tool servers listen. lease: see LeaseOptions.
    Raises SandboxError where none can be had.
    """
    box = SandboxdRuntime(template, client=client, trainer_host=trainer_host, lease=lease)
    register(box)
    try:
        await box.start()
        yield box
    finally:
        await box.stop()


class SandboxdRuntime(Runtime):
    """One leased sandbox as verifiers sees a box.

    In traces it stands among the types that verifiers knows, as `prime`, with the template in the
    image's place.
    """

    supports_user: ClassVar[bool] = True
    is_local: ClassVar[bool] = True  # programs inside reach this machine's ports by forwards

    def __init__(
        self,
        template: str,
        *,
        client: AsyncSandboxd | None = None,
        trainer_host: str = "127.0.0.1",
        lease: LeaseOptions | None = None,
    ) -> None:
        super().__init__()
        options = lease or LeaseOptions()
        self.config = PrimeConfig(image=template, workdir=options.get("workdir") or "/app")
        self.info = PrimeRuntimeInfo(**self.config.model_dump())
        self._template = template
        self._lease: LeaseOptions = {**options, "workdir": self.config.workdir}
        self._trainer_host = trainer_host
        self._own_client = client is None
        self._client = client or AsyncSandboxd()
        self._box: AsyncSandbox | None = None
        self._forwarded: set[int] = set()
        self._pumps: set[asyncio.Task[None]] = set()

    @property
    def box(self) -> AsyncSandbox:
        """The sandbox. Raises SandboxError before it is leased and after it is given back."""
        if self._box is None:
            raise SandboxError("the sandbox is not leased")
        return self._box

    async def start(self) -> None:
        """Lease."""
        with _infra("lease"):
            self._box = await self._client.lease(self._template, **self._lease)
        self.info.id = self._box.id

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Run a command to its end; the rollout's own clock bounds it."""
        with _infra("exec"):
            result = await self.box.exec(
                argv, **self._options(env), output_limit_bytes=_OUTPUT_BYTES
            )
        return ProgramResult(exit_code=_status(result), stdout=result.stdout, stderr=result.stderr)

    async def open_process(self, argv: list[str], env: dict[str, str]) -> RuntimeProcess:
        """Start a command whose input stays open."""
        with _infra("start"):
            process = await self.box.start(argv, **self._options(env), stdin_open=True)
        live = _Process(process)
        self._pumps.add(live.pump)
        live.pump.add_done_callback(self._pumps.discard)
        return live

    async def run_background(self, argv: list[str], env: dict[str, str], log: str) -> None:
        """Start a command that writes to a file inside."""
        words = ["sh", "-c", 'log=$1; shift; exec "$@" > "$log" 2>&1', "sh", log, *argv]
        with _infra("start"):
            await self.box.start(words, **self._options(env))

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        with _infra(f"read {path!r}"):
            return await self.box.files.read(path, limit=max_bytes, user=self.user)

    async def write(self, path: str, data: bytes) -> None:
        """Write a whole file, with its parents."""
        with _infra(f"write {path!r}"):
            await self.box.files.write(path, data, user=self.user)

    async def prepare_execution(self, routes: list[str] | None) -> None:
        """Have the ports of this machine that the agent needs be reached from inside."""
        ports = {url.port for url in map(urlsplit, routes or ()) if url.hostname in _LOOPBACK}
        for port in sorted(port for port in ports - self._forwarded if port is not None):
            with _infra(f"forward {port}"):
                await self.box.forward(port, f"tcp://{self._trainer_host}:{port}")
            self._forwarded.add(port)

    async def expose(self, port: int) -> str:
        """A port inside, as an address that needs no header."""
        with _infra(f"expose {port}"):
            token = await self.box.token()
        return self.box.port_url(port, token=token)

    async def teardown(self) -> None:
        """Give the sandbox back; what fails here is the daemon's to mend, by the lease's clocks."""
        for pump in self._pumps:
            pump.cancel()
        if self._box is not None:
            with contextlib.suppress(SandboxdError):
                await self._box.release()
            self._box = None  # not before: `cleanup` goes by it, if the loop dies here
        if self._own_client:
            await self._client.aclose()

    def cleanup(self) -> None:
        """The same without a loop, as a program ends."""
        if self._box is not None:
            with contextlib.suppress(SandboxdError), Sandboxd(self._client.url) as client:
                client.sandbox(self._box.id).release()

    def _options(self, env: Mapping[str, str]) -> dict[str, Any]:
        return {"env": self.process_env(dict(env)), "user": self.user}


class _Process(RuntimeProcess):
    """A live command. Its output is pumped by a task, which ends with it, or with its box."""

    def __init__(self, process: AsyncProcess) -> None:
        self._process = process
        self._result: ExecResult | None = None
        to_out, self.stdout = anyio.create_memory_object_stream[bytes](_PIECES)
        to_err, self.stderr = anyio.create_memory_object_stream[bytes](_PIECES)
        self.pump = asyncio.create_task(
            self._pour(to_out, to_err), name=f"output-{process.exec_id}"
        )

    async def _pour(self, to_out: _Sink, to_err: _Sink) -> None:
        """What breaks it is told by `wait`: whoever reads sees the end."""
        with contextlib.suppress(SandboxdError), to_out, to_err:
            async with contextlib.aclosing(self._process.events()) as events:
                async for event in events:
                    match event:
                        case Stdout():
                            await to_out.send(event.data)
                        case Stderr():
                            await to_err.send(event.data)
                        case Ended():
                            self._result = event.result
                        case _:
                            pass

    async def write(self, data: bytes) -> None:
        """Write to its input."""
        with _infra("write to a process"):
            await self._process.write(data)

    async def wait(self) -> int:
        """Its status, once it ended."""
        with _infra("wait for a process"):
            result = await self._process.wait()
        return _status(result)

    async def poll(self) -> int | None:
        """Its status, if it ended."""
        return None if self._result is None else _status(self._result)

    async def terminate(self) -> None:
        """SIGTERM."""
        with _infra("signal a process"):
            await self._process.signal("TERM")

    async def kill(self) -> None:
        """Kill its tree."""
        with _infra("kill a process"):
            await self._process.kill()


def _status(result: ExecResult) -> int:
    """A shell's number. Raises SandboxError for an end that is no doing of the command's own."""
    if result.mask or result.status is None:
        detail = result.error.detail if result.error is not None else ""
        raise SandboxError(f"the command's end is not its own: {result.outcome} {detail}".strip())
    return result.status


@contextmanager
def _infra(what: str) -> Iterator[None]:
    """A failure of ours as the error that trainers reschedule on."""
    try:
        yield
    except FileNotFound as error:
        raise SandboxError(f"{what}: there is no such file") from error
    except SandboxdError as error:
        raise SandboxError(f"{what}: {error.code}: {error}") from error
