"""Shells that remember. Each run is a command of its own, with a record, output and signals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sandboxd.backends.fake.guest.execs import Exec, Execs, JournalSink
from sandboxd.backends.fake.guest.process import Nothing, Process
from sandboxd.backends.fake.guest.refusals import Refusal
from sandboxd.backends.fake.guest.shell import Exit, Shell, Streams
from sandboxd.backends.fake.guest.surroundings import Surroundings, check_env, check_user

_PROGRAM = "/bin/bash"


@dataclass(slots=True)
class OpenShell:
    """One shell. shell is None until its first run."""

    shell_id: str
    order: Mapping[str, Any]
    shell: Shell | None = None
    running: Exec | None = None
    ended: bool = False
    closed: bool = False  # by a caller

    @property
    def state(self) -> str:
        """As the protocol names it."""
        if self.ended:
            return "ended"
        return "busy" if self.running is not None and self.running.outcome is None else "idle"

    def said(self) -> dict[str, str]:
        """It in JSON."""
        return {"shell_id": self.shell_id, "state": self.state, "shell": _PROGRAM}


class Shells:
    """All shells of one box by id."""

    def __init__(self, execs: Execs, surroundings: Surroundings) -> None:
        self._execs = execs
        self._surroundings = surroundings
        self._all: dict[str, OpenShell] = {}

    def open(self, order: Mapping[str, Any]) -> OpenShell:
        """Create or attach."""
        known = self._all.get(order["shell_id"])
        if known is None:
            check_env(order.get("env", {}))
            check_user(order.get("user", ""))
            self._surroundings.files.directory((order.get("cwd") or ".").encode())
            known = self._all[order["shell_id"]] = OpenShell(order["shell_id"], order)
        return known

    def get(self, shell_id: str) -> OpenShell:
        """One of them. Raises Refusal."""
        try:
            return self._all[shell_id]
        except KeyError:
            raise Refusal("not_found", f"there is no shell {shell_id}") from None

    def listed(self) -> list[dict[str, str]]:
        """All, newest first."""
        return [shell.said() for shell in list(self._all.values())[::-1]]

    def close(self, shell_id: str) -> None:
        """End a shell and what runs in it."""
        shell = self.get(shell_id)
        shell.ended = shell.closed = True
        if shell.running is not None:
            shell.running.kill_tree("KILL")

    def close_all(self) -> int:
        """End all; returns how many there were."""
        alive = [shell for shell in self._all.values() if not shell.ended]
        for shell in alive:
            self.close(shell.shell_id)
        return len(alive)

    def run(self, shell_id: str, order: Mapping[str, Any]) -> Exec:
        """Create or attach a run. Raises Refusal while another one runs, and after the end."""
        known = self._execs.known(order["exec_id"], order["fingerprint"])
        if known is not None:
            return known
        opened = self.get(shell_id)
        if opened.ended:
            blame = {} if opened.closed else {"from_inside": True}
            raise Refusal("conflict", "the shell has ended", shell_ended=True, **blame)
        if opened.state == "busy":
            raise Refusal("conflict", "the shell is busy")

        async def main(command: Exec) -> int:
            return await self._main(opened, command, order["text"])

        opened.running = self._execs.start(order, main)
        return opened.running

    async def _main(self, opened: OpenShell, command: Exec, text: str) -> int:
        command.interrupted = True  # unless it comes to its own end below
        shell = self._shell(opened, command)
        command.settled.set()
        streams = Streams(shell.process.stdin, shell.process.stdout, shell.process.stderr)
        try:
            status = await shell.run(text, streams)
        except Exit as end:
            opened.ended = command.shell_ended = True
            status = end.code
        command.interrupted = False
        return status

    def _shell(self, opened: OpenShell, command: Exec) -> Shell:
        """The shell, its streams and children now those of this command."""
        if opened.shell is None:
            opened.shell = Shell(self._surroundings.process(command, opened.order))
        own: Process = replace(
            opened.shell.process,
            stdin=Nothing(),
            stdout=JournalSink(command.journal, "stdout"),
            stderr=JournalSink(command.journal, "stderr"),
            family=command,
        )
        opened.shell.process = own
        return opened.shell
