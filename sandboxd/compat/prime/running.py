"""Commands of their clients, which name `/bin/bash` whatever the image has."""

from __future__ import annotations

from dataclasses import replace

from sandboxd.api.services import Services
from sandboxd.model.command import Command, ExecRecord
from sandboxd.wire.codes import Outcome, StartFailure

SHELL = "/bin/bash"
_OTHER_SHELL = "/bin/sh"
_OTHERS_MARK = ".sh"  # behind the id of a command that had to do with the other shell


async def begin(
    services: Services,
    sandbox_id: str,
    command: Command,
    *,
    owner: str | None,
    wait_s: float | None = 0,
) -> ExecRecord:
    """Create or attach, as `Commands.run` does; where there is no bash, sh runs it, under an id
    that follows from the first. The record says under which.
    """
    record = await services.commands.run(sandbox_id, command, owner=owner, wait_s=wait_s)
    if command.argv[0] != SHELL or not lacks_program(record):
        return record
    other = replace(
        command,
        exec_id=other_id(command.exec_id),
        argv=(_OTHER_SHELL, *command.argv[1:]),
    )
    return await services.commands.run(sandbox_id, other, owner=owner, wait_s=wait_s, again=True)


def other_id(exec_id: str) -> str:
    """The id of what the other shell ran instead."""
    return exec_id + _OTHERS_MARK


def first_id(exec_id: str) -> str:
    """The id that was asked for."""
    return exec_id.removesuffix(_OTHERS_MARK)


def lacks_program(record: ExecRecord) -> bool:
    """Whether it could not begin for want of its program."""
    return record.outcome is Outcome.START_FAILED and record.reason is StartFailure.NOT_FOUND
