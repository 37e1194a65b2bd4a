"""The tools of the daemon's own MCP server: each is one call of a service, as a model reads it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from sandboxd.api import render, render_kernels
from sandboxd.api.orders import grant
from sandboxd.api.schemas.fields import Body, Environment, Labels, Mode, Path, Seconds, Text
from sandboxd.api.services import Services
from sandboxd.execution.commands import shell_argv
from sandboxd.leases.terms import LeaseWish
from sandboxd.model.command import Command, ExecRecord
from sandboxd.model.ids import new_id
from sandboxd.model.kernel import CellOrder, KernelOrder
from sandboxd.model.lease import Lease, LeaseState

_KERNEL_ID = "mcp"  # of each sandbox, the one whose variables cells share
_MOST_READ_BYTES = 1 << 20
_MOST_LISTED = 1000
_USUAL_S = 60.0


@dataclass(frozen=True, slots=True)
class Told:
    """What a tool answers: text for the model, and the same as facts."""

    text: str
    facts: dict[str, Any] = field(default_factory=dict)


Act = Callable[[Services, "str | None", Any], Awaitable[Told]]


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. body: what it takes."""

    name: str
    description: str
    body: type[Body]
    act: Act

    def shown(self) -> dict[str, Any]:
        """As `tools/list` has it."""
        schema = self.body.model_json_schema()
        schema.pop("title", None)
        schema.pop("description", None)
        return {"name": self.name, "description": self.description, "inputSchema": schema}


class LeaseArguments(Body):
    """Of `lease_sandbox`."""

    template: Text | None = None
    env: Environment = Field(default_factory=dict)
    labels: Labels = Field(default_factory=dict)
    timeout_s: Seconds | None = None
    wait_timeout_s: Annotated[float, Field(ge=0, le=600)] = 60


class SandboxArguments(Body):
    """Of tools about one sandbox."""

    sandbox_id: Text


class NoArguments(Body):
    """Of `list_sandboxes`."""


class CommandArguments(SandboxArguments):
    """Of `run_command`."""

    command: Annotated[Text, StringConstraints(min_length=1)]
    cwd: Text = ""
    stdin: Text | None = None
    timeout_s: Seconds = _USUAL_S


class CellArguments(SandboxArguments):
    """Of `run_cell`."""

    code: Annotated[Text, StringConstraints(max_length=8 << 20)]
    timeout_s: Seconds = _USUAL_S


class ReadArguments(SandboxArguments):
    """Of `read_file`."""

    path: Path
    offset: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=_MOST_READ_BYTES)] = 64 << 10


class WriteArguments(SandboxArguments):
    """Of `write_file`."""

    path: Path
    text: Text
    mode: Mode | None = None


class ListArguments(SandboxArguments):
    """Of `list_files`."""

    path: Path = "."


async def _lease(services: Services, owner: str | None, wanted: LeaseArguments) -> Told:
    wish = LeaseWish(
        template=wanted.template or next(iter(services.templates), ""),
        env=wanted.env,
        labels=wanted.labels,
        timeout_s=wanted.timeout_s,
        wait_timeout_s=wanted.wait_timeout_s,
    )
    tenancy, _ = await grant(services, wish, owner=owner)
    lease = tenancy.shown()
    return Told(f"leased {lease.id}", _lease_facts(lease))


async def _list(services: Services, owner: str | None, _wanted: NoArguments) -> Told:
    live = [
        tenancy.shown()
        for tenancy in services.desk.book
        if not tenancy.lease.over and owner in {None, tenancy.lease.owner}
    ][:_MOST_LISTED]
    lines = [f"{lease.id} {lease.terms.template} {lease.state}" for lease in live]
    return Told("\n".join(lines) or "none", {"sandboxes": [_lease_facts(each) for each in live]})


async def _run(services: Services, owner: str | None, wanted: CommandArguments) -> Told:
    command = Command(
        exec_id=new_id("exe"),
        argv=shell_argv(wanted.command),
        cwd=wanted.cwd,
        stdin=None if wanted.stdin is None else wanted.stdin.encode(),
        timeout_s=wanted.timeout_s,
    )
    record = await services.commands.run(wanted.sandbox_id, command, owner=owner, wait_s=None)
    return Told(_command_text(record), render.execution(record))


async def _cell(services: Services, owner: str | None, wanted: CellArguments) -> Told:
    kernels, lease_id = services.kernels, wanted.sandbox_id
    await kernels.start(lease_id, KernelOrder(kernel_id=_KERNEL_ID), owner=owner)
    order = CellOrder(cell_id=new_id("cel"), code=wanted.code, timeout_s=wanted.timeout_s)
    cell = await kernels.submit(lease_id, _KERNEL_ID, order, owner=owner)
    while cell.outcome is None:
        cell = await kernels.look_cell(
            lease_id, _KERNEL_ID, order.cell_id, owner=owner, wait_s=_USUAL_S
        )
    facts = render_kernels.cell(cell)
    text = cell.text if cell.outcome == "ok" else f"{cell.text}\n[{cell.outcome}]"
    return Told(text, facts)


async def _read(services: Services, owner: str | None, wanted: ReadArguments) -> Told:
    async with services.files.read(
        wanted.sandbox_id,
        wanted.path,
        owner=owner,
        offset=wanted.offset,
        limit=wanted.limit,
        user="",
    ) as body:
        data = b"".join([piece async for piece in body.chunks()])
    facts = {"bytes": len(data), "total_bytes": body.total_size, "offset": wanted.offset}
    return Told(data.decode(errors="replace"), facts)


async def _write(services: Services, owner: str | None, wanted: WriteArguments) -> Told:
    data = wanted.text.encode()
    info, created = await services.files.write(
        wanted.sandbox_id,
        wanted.path,
        data,
        owner=owner,
        size=len(data),
        mode=wanted.mode,
        user="",
    )
    return Told(f"wrote {info.size} bytes to {info.path}", {"size": info.size, "created": created})


async def _list_files(services: Services, owner: str | None, wanted: ListArguments) -> Told:
    async with (
        services.files.open(wanted.sandbox_id, owner=owner) as files,
        aclosing(files.list_page(wanted.path, limit=_MOST_LISTED)) as entries,
    ):
        names = [
            {"name": entry.name, "type": entry.type, "size": entry.size} async for entry in entries
        ]
    lines = [f"{each['name']}{'/' * (each['type'] == 'directory')}" for each in names]
    return Told("\n".join(lines), {"files": names})


async def _release(services: Services, owner: str | None, wanted: SandboxArguments) -> Told:
    lease = await services.desk.release(wanted.sandbox_id, owner=owner)
    return Told(f"released {lease.id}", _lease_facts(lease))


def _lease_facts(lease: Lease) -> dict[str, Any]:
    return {
        "sandbox_id": lease.id,
        "template": lease.terms.template,
        "state": LeaseState(lease.state),
        "expires_at": lease.expires_at,
        "workdir": lease.terms.workdir,
    }


def _command_text(record: ExecRecord) -> str:
    shown = render.execution(record)
    parts = [shown["stdout"], shown["stderr"]]
    if record.exit_code != 0:
        how = record.exit_code if record.exit_code is not None else record.signal
        parts.append(f"[{record.outcome}" + (f" {how}]" if how is not None else "]"))
    return "\n".join(part.rstrip("\n") for part in parts if part)


TOOLS = (
    Tool("lease_sandbox", "Get a sandbox of your own; its id.", LeaseArguments, _lease),
    Tool("list_sandboxes", "The sandboxes that you have.", NoArguments, _list),
    Tool(
        "run_command",
        "Run shell text by `/bin/sh -c`; what it wrote, and how it ended.",
        CommandArguments,
        _run,
    ),
    Tool(
        "run_cell",
        "Run Python in a kernel that remembers variables from cell to cell.",
        CellArguments,
        _cell,
    ),
    Tool("read_file", "Read text of a file.", ReadArguments, _read),
    Tool("write_file", "Write a whole text file, with its folders.", WriteArguments, _write),
    Tool("list_files", "The names in a folder.", ListArguments, _list_files),
    Tool("release_sandbox", "Give a sandbox back; all in it is gone.", SandboxArguments, _release),
)
