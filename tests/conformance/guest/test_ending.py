"""How commands are ended: deadlines, signals, kill; trees die whole."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest
from sandboxd.model.shell import ShellOrder
from sandboxd.wire.codes import ErrorCode, Outcome
from tests.conformance.guest.steps import command, end_of, run, say, script, sh, start

_TREE = "(sleep 1; echo a > /workspace/alive) & (sleep 1; echo a > /workspace/alive) & sleep 100"


async def test_deadline_ends_the_whole_tree(guest: Guest) -> None:
    """TO-01, TO-02."""
    record = await sh(guest, _TREE, timeout_s=0.3)
    assert (record.outcome, record.exit_code) == (Outcome.TIMEOUT, None)
    assert record.duration_s >= 0.3
    assert (await sh(guest, "sleep 1.5; test -e /workspace/alive")).exit_code == 1


async def test_output_before_the_deadline_is_kept(guest: Guest) -> None:
    """TO-04."""
    record = await sh(guest, "echo begin; echo err >&2; sleep 100", timeout_s=0.3)
    assert record.outcome is Outcome.TIMEOUT
    assert (record.stdout.head, record.stderr.head) == (b"begin\n", b"err\n")


async def test_command_that_ends_in_time_is_no_timeout(guest: Guest) -> None:
    record = await sh(guest, "exit 5", timeout_s=5)
    assert (record.outcome, record.exit_code) == (Outcome.EXITED, 5)


async def test_kill_takes_the_whole_tree(guest: Guest) -> None:
    """TO-02."""
    exec_id = await start(guest, script(_TREE))
    with anyio.fail_after(5):
        assert await guest.signal(exec_id, "KILL")
    record = await end_of(guest, exec_id)
    assert (record.outcome, record.signal, record.exit_code) == (Outcome.KILLED, "KILL", None)
    assert (await sh(guest, "sleep 1.5; test -e /workspace/alive")).exit_code == 1


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP"])
async def test_command_that_a_callers_signal_ends_is_killed(guest: Guest, name: str) -> None:
    exec_id = await start(guest, command("sleep", "100"))
    with anyio.fail_after(5):
        assert await guest.signal(exec_id, name)
    record = await end_of(guest, exec_id)
    assert (record.outcome, record.signal) == (Outcome.KILLED, name)


async def test_signal_to_an_ended_command_says_so(guest: Guest) -> None:
    """TO-11."""
    record = await run(guest, command("true"))
    with anyio.fail_after(5):
        assert not await guest.signal(record.exec_id, "KILL")
    with anyio.fail_after(5):
        assert (await guest.look_exec(record.exec_id)).outcome is Outcome.EXITED


@pytest.mark.parametrize("exec_id", ["never", "1"])
async def test_signal_to_an_unknown_command_is_not_found(guest: Guest, exec_id: str) -> None:
    """TO-11."""
    with anyio.fail_after(5), pytest.raises(SandboxdError) as refused:
        await guest.signal(exec_id, "KILL")
    assert refused.value.code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize("name", ["", "NOPE", "9 9"])
async def test_unknown_signal_is_refused(guest: Guest, name: str) -> None:
    exec_id = await start(guest, command("sleep", "100"))
    with anyio.fail_after(5), pytest.raises(SandboxdError) as refused:
        await guest.signal(exec_id, name)
    assert refused.value.code is ErrorCode.BAD_REQUEST


async def test_kill_all_ends_commands_and_shells_and_the_box_lives_on(guest: Guest) -> None:
    with anyio.fail_after(10):
        await guest.open_shell(ShellOrder(shell_id="s"))
    exec_id = await start(guest, script(_TREE))
    with anyio.fail_after(10):
        assert await guest.kill_all() >= 1
    assert (await end_of(guest, exec_id)).outcome is Outcome.KILLED
    assert (await sh(guest, "sleep 1.5; test -e /workspace/alive")).exit_code == 1
    with pytest.raises(SandboxdError) as refused:
        await say(guest, "s", "echo hi")
    assert refused.value.code is ErrorCode.CONFLICT
