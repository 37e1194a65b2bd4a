"""What a command does, as events of its session."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from sandboxd.api.render import status_number, verdict_of
from sandboxd.api.services import Services
from sandboxd.compat.connect.envelopes import envelope
from sandboxd.compat.connect.faults import Broken, Fault
from sandboxd.compat.prime import messages
from sandboxd.compat.prime.running import first_id
from sandboxd.compat.prime.session_book import Session
from sandboxd.execution.commands import KeepAlive
from sandboxd.guest.attachment import Ended, Gap, OutputEvent, Piece
from sandboxd.model.command import ExecRecord
from sandboxd.wire.codes import Outcome


@dataclass(frozen=True, slots=True)
class Watched:
    """A command and how it is watched.

    after: the event that was passed on last. begun: this request has started it.
    """

    record: ExecRecord
    session: Session
    after: int | None = None
    begun: bool = False


async def events_of(
    services: Services,
    sandbox_id: str,
    open_session: Callable[[], Awaitable[Watched]],
    *,
    owner: str | None,
) -> AsyncGenerator[bytes, None]:
    """Envelopes from its start to its end. Raises Broken for an end that is no result of the
    command's, and what `Commands` raises.
    """
    watched = await open_session()
    record = watched.record
    yield envelope(messages.started(messages.pid_of(first_id(record.exec_id))))
    # Come back to after a restart of ours, nobody knows what was sent: then only what is new.
    blind = not watched.begun and watched.after is None
    known = {"stdout": record.stdout.total_bytes, "stderr": record.stderr.total_bytes}
    follow = services.commands.follow(
        sandbox_id, record.exec_id, owner=owner, after=watched.after, begun=watched.begun
    )
    async with aclosing(follow) as events:
        async for event in events:
            new = not blind or not isinstance(event, Piece) or event.offset >= known[event.stream]
            for told in _told(event, tty=watched.session.tty) if new else ():
                yield envelope(told)
            if not isinstance(event, KeepAlive | Ended):  # an end is told to whoever comes back
                watched.session.sent = event.seq


def _told(event: OutputEvent | KeepAlive, *, tty: bool) -> list[bytes]:
    match event:
        case KeepAlive():
            return [messages.alive()]
        case Piece(stream=stream, data=data):
            return [messages.output("pty" if tty else stream, data)]
        case Gap(stream=stream, size=size):
            mark = b"\n[... %d bytes not kept ...]\n" % size
            return [messages.output("pty" if tty else stream, mark)]
        case Ended(record=record):
            return end_of(record)
        case _:
            return []


def end_of(record: ExecRecord) -> list[bytes]:
    """The last messages of a command that ended. Raises Broken for its deadline, and for an end
    that says nothing of the command: nobody may take that for its result.
    """
    verdict = verdict_of(record)
    if record.outcome is Outcome.TIMEOUT:
        raise Broken(Fault("deadline_exceeded", "the command met its deadline, and was killed"))
    code = status_number(record)
    if verdict is None or verdict.mask or code is None:
        detail = record.detail or f"the command's end is no result of its own: {record.outcome}"
        client = verdict is not None and record.outcome is Outcome.START_FAILED
        raise Broken(Fault("invalid_argument" if client else "internal", detail))
    told: list[bytes] = []
    if record.outcome is Outcome.START_FAILED and record.detail:
        told.append(messages.output("stderr", f"{record.detail}\n".encode()))
    exited = record.outcome is Outcome.EXITED
    status = f"exit status {code}" if exited else f"{record.outcome} {record.signal or ''}".strip()
    told.append(
        messages.ended(exit_code=code, exited=exited, status=status, error="" if exited else status)
    )
    return told
