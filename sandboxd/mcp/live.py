"""One server of one lease: started when it is wanted, followed until its end, started anew if told.

State changes in synchronous code only. What was said to a server that died is never said to
another one in its place, and that it died is told to somebody, whether it is started anew or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import structlog

from sandboxd.errors import SandboxdError
from sandboxd.execution.ports import Ports
from sandboxd.leases.desk import Desk
from sandboxd.leases.tenancy import Tenancy
from sandboxd.mcp import verdicts
from sandboxd.mcp.callers import Call
from sandboxd.mcp.conversation import Conversation
from sandboxd.mcp.messages import SERVER_GONE, Message, params_of
from sandboxd.mcp.program import Program
from sandboxd.model.command import ExecRecord
from sandboxd.model.mcp_server import McpServer, McpState, McpStatus
from sandboxd.telemetry.metrics import Metrics
from sandboxd.wire.codes import ErrorCode, Outcome

log = structlog.get_logger(__name__)

_SOON_S = 10.0  # a program that ends sooner counts as one that cannot run
_MOST_SOON = 5  # of those in a row
_LISTEN_S = 60.0  # for a server that was started to take connections
_LAST_WORDS_S = 2.0  # for the end of a program to be known whose connection broke
_LISTEN_AGAIN_S = 0.02
_FIRST_PAUSE_S = 0.2  # before the second of them, and twice as long before each further one


@dataclass(frozen=True, slots=True)
class Past:
    """What its guest knows of it already. first, last: generations; record: of the last."""

    first: int
    last: int
    record: ExecRecord


@dataclass(frozen=True, slots=True)
class _Life:
    """How a program ended. answered: somebody, once. told: callers that waited for it then."""

    record: ExecRecord
    answered: bool
    told: bool


class LiveServer:
    """See the module. label: what metrics call it. Its calls raise as those of `Commands` do,
    `start_failed`, and `conflict` with status 502 for a dead one.
    """

    def __init__(
        self,
        server: McpServer,
        *,
        tenancy: Tenancy,
        desk: Desk,
        ids: Iterator[int],
        metrics: Metrics,
        label: str,
        past: Past | None,
    ) -> None:
        self.server = server
        self.tenancy = tenancy
        self.label = label
        self.when_over: Callable[[], None] = _nothing  # told of each call that is over
        self.talk: Conversation | None = None  # with the program that runs
        self.hello: Mapping[str, Any] = {}  # what it was told of its client, for the next program
        self._desk = desk
        self._ids = ids
        self._metrics = metrics
        self._first = past.first if past else 1
        self._generation = past.last if past else 0
        self._past = past.record if past else None
        runs = past is not None and past.record.outcome is None
        self._state = McpState.STARTING if runs else McpState.STOPPED
        self._death: SandboxdError | None = None  # of a dead one, or of the last that did not start
        self._untold: SandboxdError | None = None  # a death that nobody has heard of
        self._reached = False
        self._wanted = anyio.Event()
        self._changed = anyio.Event()

    @property
    def restarts(self) -> int:
        """How often it was started anew."""
        return max(0, self._generation - self._first)

    def status(self, *, sessions: int = 0) -> McpStatus:
        """As it is now. sessions: that clients have with it."""
        state = self._state
        if not self.server.command:
            state = McpState.RUNNING  # by somebody else; we are not told
        return McpStatus(
            name=self.server.name,
            scope=self.server.scope,
            transport="http" if self.server.port else "stdio",
            state=state,
            restarts=self.restarts,
            sessions=sessions,
        )

    async def conversation(self) -> Conversation:
        """With the program that runs, which is started if it never was."""
        while True:
            if self.talk is not None:
                await self.talk.program.caught_up.wait()
                return self.talk
            if self._state is McpState.DEAD:
                assert self._death is not None
                raise self._death.again()
            self._wanted.set()
            changed = self._changed
            await changed.wait()
            if self._state is McpState.STOPPED and self._death is not None:
                raise self._death.again()

    async def run(self) -> None:
        """Own its program until cancelled, or until it is dead for good; one that runs lives on in
        its sandbox. Raises what became of that.
        """
        soon = 0
        while True:
            if self._past is None:
                await self._wanted.wait()
                self._generation += 1
            if self._past is None or self._past.outcome is None:
                self._change(McpState.STARTING)
            began = anyio.current_time()
            life = await self._live()
            soon = soon + 1 if anyio.current_time() - began < _SOON_S else 0
            if not self._ended(life, give_up=soon >= _MOST_SOON):
                return
            if soon > 1:
                await anyio.sleep(_FIRST_PAUSE_S * 2 ** (soon - 2))

    def end(self, error: SandboxdError) -> None:
        """Nobody is answered any more, and why."""
        self._death = error
        self._change(McpState.DEAD)

    async def until_listening(self, ports: Ports, *, owner: str | None) -> None:
        """Of one that speaks HTTP: it runs, and has taken a connection once."""
        if not self.server.command:
            return
        self.tell_once()
        talk = await self.conversation()
        if self._reached:
            return
        with anyio.move_on_after(_LISTEN_S):
            while not talk.ended.is_set():
                try:
                    async with ports.open(self.tenancy.lease.id, self.server.port, owner=owner):
                        self._reached = True
                        return
                except SandboxdError as error:
                    if error.details.get("reason") not in {"refused", "timeout"}:
                        raise
                with anyio.move_on_after(_LISTEN_AGAIN_S):
                    await talk.ended.wait()
        if talk.over is not None:
            raise talk.over.again()
        raise verdicts.not_listening(self.server.name, self.server.port, _LISTEN_S)

    async def why_it_broke(self, error: SandboxdError) -> SandboxdError:
        """The server's death, if that is why a connection to it ended; else the error itself."""
        talk = self.talk
        if talk is not None:
            with anyio.move_on_after(_LAST_WORDS_S):
                await talk.ended.wait()
            return error if talk.over is None else talk.over.again()
        return error if self._death is None else self._death.again()

    def tell_once(self) -> None:
        """Raises the death of a server that was started anew, if nobody has heard of it."""
        if self._untold is not None:
            self.tell_death()

    def tell_death(self) -> None:
        """Raises the death of a server that was started anew."""
        error, self._untold = self._death, None
        assert error is not None
        raise error.again()

    async def _live(self) -> _Life:
        """One program from its start to its end."""
        program = Program(self._desk, self.tenancy, self.server, generation=self._generation)
        record, self._past = self._past, None
        is_new = record is None
        self._reached = not is_new and self._generation > 0  # by an earlier daemon, maybe
        record = record or await program.start()
        if record.outcome is not None:
            return _Life(await program.look(), answered=self._reached, told=False)
        self._note("mcp.started" if is_new else "mcp.found", generation=self._generation)
        error = _unheard()
        async with anyio.create_task_group() as tasks:
            talk = Conversation(program, ids=self._ids, tasks=tasks, answered=self._answered)
            self.talk = talk
            self._change(McpState.RUNNING)
            life: _Life | None = None
            try:
                with self._metrics.mcp_servers.labels(self.label).track_inprogress():
                    past_bytes = record.stdout.total_bytes
                    await program.follow(talk.heard, past_bytes=past_bytes, lost=talk.lost)
                record = await program.look()
                answered = self._reached or talk.greeting is not None
                life = _Life(record, answered=answered, told=talk.in_flight > 0)
                error = self._error_of(life)
            except SandboxdError as what_became_of_it:
                error = what_became_of_it
            finally:
                self.talk = None
                talk.end(error)
                tasks.cancel_scope.cancel()
        if life is None:
            raise error
        return life

    def _error_of(self, life: _Life) -> SandboxdError:
        if life.answered:
            restarted = self.server.restart == "on_exit"
            error = verdicts.death(self.server.name, life.record, restarted=restarted)
        else:
            error = verdicts.not_started(self.server.name, life.record)
        error.sandbox_id = self.tenancy.lease.id
        return error

    def _ended(self, life: _Life, *, give_up: bool) -> bool:
        """Whether it is, or may be, started anew."""
        record = life.record
        self._note("mcp.ended", outcome=record.outcome, exit_code=record.exit_code)
        self._wanted = anyio.Event()
        self._death = self._error_of(life)
        if not life.answered:  # there is nothing that it could have forgotten
            self._first = self._generation + 1
            if self._was_ended_for_a_lease(record):
                self._death = None
            self._change(McpState.STOPPED)
            return True
        if self.server.restart == "on_exit" and not give_up:
            self._untold = None if life.told else self._death
            self._metrics.mcp_restarts.labels(self.label).inc()
            self._wanted.set()
            self._change(McpState.STARTING)
            return True
        if give_up:
            self._death = verdicts.death(self.server.name, record)
            self._death.sandbox_id = self.tenancy.lease.id
        self._change(McpState.DEAD)
        return False

    def _was_ended_for_a_lease(self, record: ExecRecord) -> bool:
        """It ran before the lease, and was not what that asked for."""
        return self._generation == 0 and record.outcome is Outcome.KILLED

    def _change(self, state: McpState) -> None:
        self._state = state
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def _answered(self, call: Call, answer: Message) -> None:
        """One call of a caller's is over."""
        took_s = anyio.current_time() - call.began_at
        outcome = outcome_of(answer)
        self._metrics.mcp_calls.labels(self.label, outcome).observe(took_s)
        self.note_call(call.request, outcome=outcome, took_s=took_s)
        self.when_over()

    def note_call(self, request: Message, *, outcome: str, took_s: float) -> None:
        """A line of the log."""
        facts = call_facts(self.tenancy, self.server.name, request, took_s=took_s)
        log.info("mcp.call", outcome=outcome, **facts)

    def _note(self, event: str, **facts: Any) -> None:
        self.tenancy.note(event, server=self.server.name, **facts)
        log.info(event, server=self.server.name, **ids_of(self.tenancy), **facts)


def _nothing() -> None:
    """Nobody wants to be told."""


def _unheard() -> SandboxdError:
    """What calls are answered whose server this daemon follows no longer."""
    return SandboxdError(
        ErrorCode.SHUTTING_DOWN,
        "this daemon is shutting down; the call may go on inside",
        retry_safe=False,
    )


def outcome_of(answer: Message) -> str:
    """How metrics and logs name the end of a call; `tool_error` is the tool's own word."""
    if "error" in answer:
        return "refused" if answer["error"].get("code") == SERVER_GONE else "error"
    result = answer.get("result")
    failed = isinstance(result, dict) and result.get("isError") is True
    return "tool_error" if failed else "ok"


def call_facts(tenancy: Tenancy, server: str, request: Message, *, took_s: float) -> dict[str, Any]:
    """What logs tell of a call, whose arguments are nobody's business."""
    method = request["method"]
    return {
        "server": server,
        "method": method,
        "name": params_of(request).get("name") if method == "tools/call" else None,
        "duration_s": round(took_s, 6),
        **ids_of(tenancy),
    }


def ids_of(tenancy: Tenancy) -> Mapping[str, str | None]:
    """By which a log's reader finds the rollout."""
    terms = tenancy.lease.terms
    return {
        "sandbox_id": tenancy.lease.id,
        "run_id": terms.run_id,
        "group_id": terms.group_id,
        "rollout_id": terms.rollout_id,
    }
