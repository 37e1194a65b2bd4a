"""Commands on a terminal: what programs and people expect of one."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.backends.protocol import Backend
from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest
from sandboxd.model.command import Command, TerminalSize
from sandboxd.wire.codes import ErrorCode, Outcome
from tests.conformance.guest.screens import Screen, screen_of
from tests.conformance.guest.steps import (
    command,
    end_of,
    joined,
    need_any_program,
    replay,
    run,
    script,
    sh,
    start,
    until,
)

BASH = ("bash", "--norc", "--noprofile", "-i")
PROMPT = {"PS1": "ready> ", "HISTFILE": "/dev/null"}


async def need(guest: Guest, program: str) -> None:
    """Skip where the image has no such program."""
    if (await sh(guest, f"command -v {program}")).exit_code != 0:
        pytest.skip(f"the image has no {program}")


@pytest.mark.requirement("ST-11")
async def test_size_is_right_when_the_command_first_looks(guest: Guest) -> None:
    """ST-11."""
    for _ in range(50):
        record = await run(guest, command("stty", "size", tty=TerminalSize(40, 120)))
        assert record.stdout.head == b"40 120\r\n"


async def test_both_outputs_are_one_in_order(guest: Guest) -> None:
    record = await sh(guest, "echo out; echo err >&2; echo out; exit 3", tty=TerminalSize())
    assert record.stdout.head == b"out\r\nerr\r\nout\r\n"
    assert (record.stderr.total_bytes, record.exit_code) == (0, 3)


async def test_terminal_type_is_known_and_may_be_another(guest: Guest) -> None:
    size = TerminalSize()
    record = await sh(guest, "echo $TERM", tty=size)
    assert record.stdout.head == b"xterm-256color\r\n"
    record = await sh(guest, "echo $TERM", tty=size, env={"TERM": "dumb"})
    assert record.stdout.head == b"dumb\r\n"


async def test_what_is_typed_is_echoed_and_read_by_the_line(guest: Guest) -> None:
    async with screen_of(guest, "cat") as screen:
        await screen.type("hello")
        await screen.see("hello")
        await screen.type("\n")
        await screen.type("\x04")
        record = await screen.end()
    assert (record.outcome, record.exit_code) == (Outcome.EXITED, 0)
    assert screen.raw.startswith(b"hello\r\nhello\r\n")


async def test_interrupt_is_a_key(guest: Guest) -> None:
    async with screen_of(guest, "sleep", "100") as screen:
        await screen.type("\x03")
        record = await screen.end()
    assert (record.outcome, record.signal) == (Outcome.SIGNALED, "INT")


async def test_end_of_the_input_is_told_to_a_terminal(guest: Guest) -> None:
    exec_id = await start(guest, command("cat", tty=TerminalSize()))
    with anyio.fail_after(10):
        assert await guest.write_stdin(exec_id, b"half a line", offset=0, eof=True) == 11
    assert (await end_of(guest, exec_id)).exit_code == 0


async def test_signal_ends_a_command_on_a_terminal(guest: Guest) -> None:
    exec_id = await start(guest, command("sleep", "100", tty=TerminalSize()))
    with anyio.fail_after(10):
        assert await guest.signal(exec_id, "TERM")
    record = await end_of(guest, exec_id)
    assert (record.outcome, record.signal) == (Outcome.KILLED, "TERM")


async def test_deadline_ends_a_command_on_a_terminal(guest: Guest) -> None:
    record = await run(guest, command("sleep", "100", tty=TerminalSize(), timeout_s=0.3))
    assert (record.outcome, record.signal) == (Outcome.TIMEOUT, "KILL")


async def test_command_without_a_terminal_has_no_size(guest: Guest) -> None:
    exec_id = await start(guest, command("sleep", "100"))
    with anyio.fail_after(10), pytest.raises(SandboxdError) as refused:
        await guest.resize(exec_id, 24, 80)
    assert (refused.value.code, refused.value.status) == (ErrorCode.CONFLICT, 409)
    await guest.signal(exec_id, "KILL")


async def test_command_that_ended_has_no_size_any_more(guest: Guest) -> None:
    record = await run(guest, command("true", tty=TerminalSize()))
    with anyio.fail_after(10), pytest.raises(SandboxdError) as refused:
        await guest.resize(record.exec_id, 24, 80)
    assert (refused.value.code, refused.value.status) == (ErrorCode.CONFLICT, 410)


@pytest.mark.parametrize(("rows", "cols"), [(0, 80), (24, 0), (65536, 80), (24, -1)])
async def test_impossible_sizes_are_refused(guest: Guest, rows: int, cols: int) -> None:
    exec_id = await start(guest, command("sleep", "100", tty=TerminalSize()))
    with anyio.fail_after(10):
        for call in (
            lambda: guest.run(command("true", tty=TerminalSize(rows, cols)), wait=True),
            lambda: guest.resize(exec_id, rows, cols),
        ):
            with pytest.raises(SandboxdError) as refused:
                await call()
            assert refused.value.code is ErrorCode.BAD_REQUEST
    await guest.signal(exec_id, "KILL")


@pytest.mark.requirement("ST-11")
async def test_size_may_change_between_two_looks(guest: Guest) -> None:
    """ST-11."""
    text = "stty size; head -c 1; stty size; head -c 1; stty size"
    async with screen_of(guest, "/bin/sh", "-c", text) as screen:
        await screen.see("24 80")
        await guest.resize(screen.exec_id, 50, 200)
        await screen.type("\n")
        await screen.see("50 200")
        await screen.resize(7, 30)
        await screen.type("\n")
        await screen.see("7 30")
        assert (await screen.end()).exit_code == 0


async def test_terminals_output_is_kept_and_replayed(guest: Guest) -> None:
    record = await sh(guest, "echo one; echo two", tty=TerminalSize())
    events = await replay(guest, record.exec_id)
    assert joined(events) == record.stdout.head == b"one\r\ntwo\r\n"
    assert joined(await replay(guest, record.exec_id, offsets=(5, 0))) == b"two\r\n"


async def test_same_command_attaches_whatever_its_size(guest: Guest) -> None:
    order = command("head", "-c", "3", tty=TerminalSize(24, 80))
    exec_id = await start(guest, order)
    again = Command(exec_id=exec_id, argv=order.argv, tty=TerminalSize(50, 100))
    assert await start(guest, again) == exec_id
    with anyio.fail_after(10):
        plain = Command(exec_id=exec_id, argv=order.argv)
        with pytest.raises(SandboxdError) as refused:
            await guest.run(plain, wait=False)
        assert refused.value.code is ErrorCode.CONFLICT
        await guest.write_stdin(exec_id, b"it\n")
    assert (await end_of(guest, exec_id)).stdout.head == b"it\r\n" * 2


async def test_two_readers_see_the_same_terminal(guest: Guest) -> None:
    async with screen_of(guest, "cat") as screen, guest.attach(screen.exec_id) as attachment:
        other = Screen(attachment, screen.exec_id, TerminalSize())
        await other.type("shared")
        await screen.see("shared")
        await other.see("shared")
        await screen.type("\x03")
        await other.end()


async def test_shell_has_job_control(backend: Backend, guest: Guest) -> None:
    need_any_program(backend)
    async with screen_of(guest, *BASH, env=PROMPT) as screen:
        await screen.see("ready>")
        await screen.type("sleep 1000\n")
        await until_state(guest, "sleep 1000", "S")
        await screen.type("\x1a")
        await screen.see("Stopped")
        await screen.type("jobs; echo listed-$?\n")
        await screen.see("listed-0")
        await screen.type("fg\n")
        await until_state(guest, "sleep 1000", "S")
        await screen.type("\x03")
        await screen.type("echo left-$?\n")
        await screen.see("left-130")
        await screen.type("exit 6\n")
        assert (await screen.end()).exit_code == 6


async def until_state(guest: Guest, line: str, state: str) -> None:
    """Wait until a process of that command line is in that state."""
    text = (
        "for d in /proc/[0-9]*; do "
        f"[ \"$(tr '\\0' ' ' <$d/cmdline)\" = '{line} ' ] && sed 's/.*) //; s/ .*//' $d/stat; "
        "done 2>/dev/null"
    )

    async def holds() -> bool:
        return (await sh(guest, text)).stdout.head == state.encode() + b"\n"

    await until(holds)


async def test_file_is_written_with_a_full_screen_editor(backend: Backend, guest: Guest) -> None:
    need_any_program(backend)
    await need(guest, "vim")
    async with screen_of(guest, "vim", "-u", "NONE", "-N", "note", rows=20, cols=60) as screen:
        await screen.see('"note" [New]')
        await screen.see("~")
        # To leave by ^\ ^N: an escape could be the beginning of another key.
        await screen.type("ihello from a sandbox\rsecond line\x1c\x0e")
        await screen.see("second line")
        await screen.resize(30, 100)
        # It redraws when it has heard of its size, and takes away what it said before.
        await screen.ask(":echo &lines . 'x' . &columns\r", "30x100")
        assert screen.lines[:2] == ["hello from a sandbox", "second line"]
        await screen.type(":wq\r")
        assert (await screen.end()).exit_code == 0
    record = await run(guest, command("cat", "note"))
    assert record.stdout.head == b"hello from a sandbox\nsecond line\n"


async def test_pager_shows_a_page_and_leaves(backend: Backend, guest: Guest) -> None:
    need_any_program(backend)
    await need(guest, "less")
    async with screen_of(guest, "/bin/sh", "-c", "seq 100 | less", rows=10, cols=40) as screen:
        await screen.see("9")
        assert screen.lines[:9] == [str(number) for number in range(1, 10)]
        await screen.type("G")
        await screen.see("100")
        await screen.type("q")
        assert (await screen.end()).exit_code == 0


async def test_child_that_keeps_the_terminal_delays_nothing(backend: Backend, guest: Guest) -> None:
    need_any_program(backend)
    text = "trap '' HUP; sleep 60 & echo bye"
    with anyio.fail_after(5):
        record = await guest.run(script(text, tty=TerminalSize()), wait=True)
    assert record.stdout.head == b"bye\r\n"
    assert record.survivors
    await guest.kill_all()


@pytest.mark.requirement("ST-07")
async def test_last_words_are_whole(backend: Backend, guest: Guest) -> None:
    """ST-07."""
    need_any_program(backend)
    for _ in range(20):
        record = await run(guest, command("seq", "1", "5000", tty=TerminalSize()))
        lines = record.stdout.head.split(b"\r\n")
        assert lines == [str(number).encode() for number in range(1, 5001)] + [b""]
