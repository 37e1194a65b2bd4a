"""Shells that remember, in a leased sandbox. They live in its guest."""

from __future__ import annotations

import anyio

from sandboxd.execution.reattach import ask, ask_once, ask_to_the_end
from sandboxd.leases.desk import Desk
from sandboxd.model.command import ExecRecord
from sandboxd.model.shell import Shell, ShellOrder, ShellText

_ASK_S = 15.0


class Shells:
    """Opens, runs in and closes shells. Raises as `Commands` does."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def open(self, lease_id: str, order: ShellOrder, *, owner: str | None) -> Shell:
        """Create or attach."""
        with self._desk.using(lease_id, owner=owner) as tenancy, anyio.fail_after(_ASK_S):
            return await ask(self._desk, tenancy, lambda g: g.open_shell(order))

    async def run(
        self,
        lease_id: str,
        shell_id: str,
        text: ShellText,
        *,
        owner: str | None,
        wait_s: float | None,
    ) -> ExecRecord:
        """Run text, and wait for its end at most `wait_s` seconds, or None as long as it takes.

        `conflict` while the shell is busy, and with `details.shell_ended` once it has ended.
        """
        with self._desk.using(lease_id, owner=owner) as tenancy:
            tenancy.execs += 1
            return await ask_to_the_end(
                self._desk,
                tenancy,
                lambda g, *, wait: g.run_in_shell(shell_id, text, wait=wait),
                wait_s=wait_s,
            )

    async def look(self, lease_id: str, shell_id: str, *, owner: str | None) -> Shell:
        """A shell as it is now."""
        tenancy = self._desk.look_at(lease_id, owner=owner)
        with anyio.fail_after(_ASK_S):
            return await ask(self._desk, tenancy, lambda g: g.look_shell(shell_id))

    async def list(self, lease_id: str, *, owner: str | None) -> list[Shell]:
        """All shells of a sandbox."""
        tenancy = self._desk.look_at(lease_id, owner=owner)
        with anyio.fail_after(_ASK_S):
            return await ask(self._desk, tenancy, lambda g: g.list_shells())

    async def close(self, lease_id: str, shell_id: str, *, owner: str | None) -> None:
        """End a shell and what runs in it."""
        with self._desk.using(lease_id, owner=owner) as tenancy, anyio.fail_after(_ASK_S):
            await ask_once(self._desk, tenancy, lambda g: g.close_shell(shell_id))
