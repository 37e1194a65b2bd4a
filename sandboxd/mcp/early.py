"""Servers that are started in boxes before anybody leases them, until they answer.

Knows no leases. Whatever goes wrong is the task's fault, for no agent has acted: all but what the
host had too little of, and an end that nobody saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import anyio

from sandboxd.errors import SandboxdError
from sandboxd.guest.attachment import Ended, Piece
from sandboxd.guest.client import Guest
from sandboxd.leases.granting.early import expected_claim
from sandboxd.leases.slots import Slots
from sandboxd.mcp import verdicts
from sandboxd.mcp.lines import LineReader
from sandboxd.mcp.messages import write_message
from sandboxd.mcp.program import command_of
from sandboxd.model.claim import Claim
from sandboxd.model.command import ExecRecord
from sandboxd.model.mcp_server import McpServer, exec_id_of
from sandboxd.model.template import BoxSpec
from sandboxd.pool.setting_up import fault_of, start_together
from sandboxd.pool.stock import DiaryEntry
from sandboxd.wire.codes import ErrorCode, Fault

_READY_S = 120.0
_CONNECT_AGAIN_S = 0.05
_PING = {"jsonrpc": "2.0", "id": 0, "method": "ping"}  # all that may be said before `initialize`


class EarlyServers:
    """An `EarlyStarter`. limits: on every process of a box. slots: lends them processors."""

    def __init__(self, *, limits: Mapping[str, int], slots: Slots) -> None:
        self._limits = limits
        self._slots = slots

    async def start_all(self, guest: Guest, spec: BoxSpec) -> tuple[DiaryEntry, ...]:
        """See `EarlyStarter`. Cancelled or failed: what was started goes with the box."""
        expected = expected_claim(spec, limits=self._limits, slots=self._slots)
        return await start_together(
            (f"early-mcp-{server.name}", partial(_start, guest, server, expected=expected))
            for server in spec.mcp_servers
        )


async def _start(guest: Guest, server: McpServer, *, expected: Claim) -> DiaryEntry:
    began = anyio.current_time()
    try:
        with anyio.fail_after(_READY_S):
            command = command_of(server, 0, expected=expected)
            record = await guest.run(command, wait=False)
            if record.outcome is not None:
                raise _failed(server, record)
            await (_listens(guest, server) if server.port else _answers(guest, server))
    except TimeoutError:
        raise SandboxdError(
            ErrorCode.START_FAILED,
            f"the MCP server {server.name!r} did not answer within {_READY_S:g} s",
            fault=Fault.TASK,
            mask=True,
            details={"server": server.name},
        ) from None
    return {
        "at": record.started_at,
        "event": "mcp.started",
        "server": server.name,
        "generation": 0,
        "duration_s": anyio.current_time() - began,
    }


async def _answers(guest: Guest, server: McpServer) -> None:
    """Whatever it says to a ping: it reads, and it writes."""
    exec_id, reader = exec_id_of(server.name, 0), LineReader()
    async with guest.attach(exec_id) as line:
        await line.send_stdin(write_message(_PING))
        async for event in line:
            match event:
                case Piece(stream="stdout", data=data) if reader.feed(data):
                    return
                case Ended():
                    raise _failed(server, await guest.look_exec(exec_id))
                case _:
                    pass


async def _listens(guest: Guest, server: McpServer) -> None:
    while True:
        try:
            await (await guest.open_port(server.port)).aclose()
            return
        except SandboxdError as error:
            if error.code is not ErrorCode.CONFLICT:
                raise
        record = await guest.look_exec(exec_id_of(server.name, 0), wait_s=_CONNECT_AGAIN_S)
        if record.outcome is not None:
            raise _failed(server, record)


def _failed(server: McpServer, record: ExecRecord) -> SandboxdError:
    error = verdicts.not_started(server.name, record)
    error.fault, error.mask = fault_of(record), True
    return error
