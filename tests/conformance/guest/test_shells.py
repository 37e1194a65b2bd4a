"""Shells that remember, end when they are told to, and never hang."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from sandboxd.backends.protocol import Backend
from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest
from sandboxd.model.ids import new_id
from sandboxd.model.shell import ShellOrder, ShellState, ShellText
from sandboxd.wire.codes import ErrorCode, Outcome
from tests.conformance.guest.steps import end_of, need_any_program, say


@pytest.fixture
async def shell(guest: Guest) -> AsyncIterator[str]:
    """An open shell."""
    with anyio.fail_after(10):
        yield (await guest.open_shell(ShellOrder(shell_id=new_id("sh")))).shell_id


async def test_directory_and_variables_live_from_run_to_run(guest: Guest, shell: str) -> None:
    await say(guest, shell, "cd /etc; MINE=1; export YOURS=2")
    record = await say(guest, shell, "pwd; echo $MINE; printenv YOURS")
    assert (record.exit_code, record.stdout.head) == (0, b"/etc\n1\n2\n")


async def test_each_run_has_its_own_status_and_output(guest: Guest, shell: str) -> None:
    first = await say(guest, shell, "echo out; echo err >&2; false")
    second = await say(guest, shell, "echo $?; echo -n end")
    assert (first.exit_code, first.stdout.head, first.stderr.head) == (1, b"out\n", b"err\n")
    assert (second.exit_code, second.stdout.head) == (0, b"1\nend")


async def test_open_shell_has_its_own_place_and_environment(guest: Guest) -> None:
    await guest.files.mkdir("here")
    order = ShellOrder(shell_id="s", cwd="here", env={"MINE": "a b"})
    with anyio.fail_after(10):
        assert (await guest.open_shell(order)).state is ShellState.IDLE
        assert (await guest.open_shell(order)).state is ShellState.IDLE
        assert [shell.shell_id for shell in await guest.list_shells()] == ["s"]
    record = await say(guest, "s", 'pwd; echo "$MINE"')
    assert record.stdout.head == b"/workspace/here\na b\n"


@pytest.mark.requirement("EX-14")
@pytest.mark.parametrize(("text", "status"), [("exit 3", 3), ("set -e; false", 1), ("exit", 0)])
async def test_shell_that_exits_says_so_and_takes_no_more(
    guest: Guest, shell: str, text: str, status: int
) -> None:
    """EX-14."""
    record = await say(guest, shell, text)
    assert (record.outcome, record.exit_code) == (Outcome.EXITED, status)
    assert record.shell_ended
    with pytest.raises(SandboxdError) as refused:
        await say(guest, shell, "echo b")
    assert refused.value.code is ErrorCode.CONFLICT
    assert refused.value.details["shell_ended"] is True
    assert refused.value.details["from_inside"] is True
    with anyio.fail_after(5):
        assert (await guest.look_shell(shell)).state is ShellState.ENDED
        await guest.open_shell(ShellOrder(shell_id="fresh"))
    assert (await say(guest, "fresh", "echo c")).stdout.head == b"c\n"


@pytest.mark.requirement("EX-13")
async def test_unterminated_quote_is_a_syntax_error_and_the_shell_goes_on(
    guest: Guest, shell: str
) -> None:
    """EX-13."""
    bad = await say(guest, shell, "echo 'never closed", timeout_s=5)
    assert bad.outcome is Outcome.EXITED
    assert bad.exit_code
    assert (await say(guest, shell, "echo ok")).stdout.head == b"ok\n"


@pytest.mark.requirement("EX-13")
async def test_here_documents_work_and_unterminated_ones_do_not_hang(
    guest: Guest, shell: str, backend: Backend
) -> None:
    """EX-13."""
    need_any_program(backend)
    whole = await say(guest, shell, "cat > /tmp/f <<'X'\n1\n2\n3\nX\n")
    assert whole.exit_code == 0
    await say(guest, shell, "cat <<'X'\nnever ended", timeout_s=5)
    assert (await say(guest, shell, "cat /tmp/f")).stdout.head == b"1\n2\n3\n"


async def test_deadline_ends_the_run_and_not_the_shell(guest: Guest, shell: str) -> None:
    await say(guest, shell, "MINE=kept")
    record = await say(guest, shell, "echo begin; sleep 100", timeout_s=0.3)
    assert (record.outcome, record.stdout.head) == (Outcome.TIMEOUT, b"begin\n")
    assert not record.shell_ended
    assert (await say(guest, shell, "echo $MINE")).stdout.head == b"kept\n"


async def test_one_run_at_a_time(guest: Guest, shell: str) -> None:
    first = ShellText(exec_id="first", text="sleep 0.5")
    with anyio.fail_after(10):
        await guest.run_in_shell(shell, first, wait=False)
        assert (await guest.look_shell(shell)).state is ShellState.BUSY
        with pytest.raises(SandboxdError) as refused:
            await say(guest, shell, "echo second")
        assert refused.value.code is ErrorCode.CONFLICT
        attached = await guest.run_in_shell(shell, first, wait=True)
    assert attached.exit_code == 0
    assert (await end_of(guest, "first")).exit_code == 0


@pytest.mark.requirement("EX-18")
async def test_shell_reads_no_input_of_ours(guest: Guest, shell: str) -> None:
    """EX-18."""
    record = await say(guest, shell, "cat; echo after")
    assert (record.exit_code, record.stdout.head) == (0, b"after\n")


async def test_functions_and_options_live_on(guest: Guest, shell: str, backend: Backend) -> None:
    need_any_program(backend)
    await say(guest, shell, 'f() { echo "f $1"; }; set -u')
    record = await say(guest, shell, 'f x; echo "$NOT_SET"')
    assert record.stdout.head.startswith(b"f x\n")
    assert record.exit_code


async def test_closing_ends_what_runs(guest: Guest, shell: str) -> None:
    with anyio.fail_after(10):
        await guest.run_in_shell(shell, ShellText(exec_id="long", text="sleep 100"), wait=False)
        await guest.close_shell(shell)
    assert (await end_of(guest, "long")).outcome in {Outcome.KILLED, Outcome.LOST}
    with pytest.raises(SandboxdError) as refused:
        await say(guest, shell, "echo")
    assert refused.value.code in {ErrorCode.CONFLICT, ErrorCode.NOT_FOUND}


async def test_unknown_shell_is_not_found(guest: Guest) -> None:
    with pytest.raises(SandboxdError) as refused:
        await say(guest, "never", "echo")
    assert refused.value.code is ErrorCode.NOT_FOUND
