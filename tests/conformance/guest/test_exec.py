"""Commands: what they are given, how their ends are told, and that nothing runs twice."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.backends.protocol import Backend
from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest
from sandboxd.model.command import ExecRecord
from sandboxd.wire.codes import ErrorCode, Outcome, StartFailure
from tests.conformance.guest.steps import command, end_of, need_any_program, run, script, sh, start


@pytest.mark.requirement("EX-01")
async def test_exit_status_is_never_missing_under_load(guest: Guest) -> None:
    """EX-01."""
    records: list[ExecRecord] = []

    async def one() -> None:
        records.append(await sh(guest, "exit 42"))

    for _ in range(4):
        async with anyio.create_task_group() as group:
            for _ in range(25):
                group.start_soon(one)
    assert {(r.outcome, r.exit_code) for r in records} == {(Outcome.EXITED, 42)}
    assert len(records) == 100


@pytest.mark.requirement("EX-19")
@pytest.mark.parametrize(("given", "told"), [(0, 0), (1, 1), (2, 2), (125, 125), (126, 126),
                                            (128, 128), (255, 255), (256, 0)])  # fmt: skip
async def test_exit_code_is_told_as_a_number(guest: Guest, given: int, told: int) -> None:
    """EX-19."""
    record = await sh(guest, f"exit {given}")
    assert (record.outcome, record.exit_code, record.signal) == (Outcome.EXITED, told, None)


@pytest.mark.requirement("EX-19")
@pytest.mark.parametrize(
    ("number", "name"), [(9, "KILL"), (15, "TERM"), (11, "SEGV"), (13, "PIPE")]
)
async def test_death_by_signal_has_its_name_and_no_code(
    guest: Guest, number: int, name: str
) -> None:
    """EX-19."""
    record = await sh(guest, f"kill -{number} $$")
    assert (record.outcome, record.exit_code, record.signal) == (Outcome.SIGNALED, None, name)


@pytest.mark.requirement("EX-05")
@pytest.mark.parametrize("stdin", [None, b""])
@pytest.mark.parametrize("program", ["true", "cat"])
async def test_no_stdin_is_end_of_file_at_once(
    guest: Guest, program: str, stdin: bytes | None
) -> None:
    """EX-05."""
    record = await run(guest, command(program, stdin=stdin))
    assert (record.exit_code, record.stdout.total_bytes) == (0, 0)


@pytest.mark.requirement("EX-03")
async def test_command_ends_with_its_main_process_though_a_child_holds_the_pipe(
    guest: Guest,
) -> None:
    """EX-03."""
    for _ in range(5):
        record = await sh(guest, "sleep 300 & echo done")
        assert (record.exit_code, record.stdout.head) == (0, b"done\n")
        assert record.survivors


@pytest.mark.requirement("EX-08")
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("no-such-cmd-xyz", StartFailure.NOT_FOUND),
        ("/no/such/cmd", StartFailure.NOT_FOUND),
        ("/etc/hostname", StartFailure.NOT_EXECUTABLE),
        ("/etc", StartFailure.NOT_EXECUTABLE),
    ],
)
async def test_what_cannot_be_started_says_why_and_has_no_code(
    guest: Guest, program: str, reason: StartFailure
) -> None:
    """EX-08."""
    record = await run(guest, command(program))
    assert (record.outcome, record.reason) == (Outcome.START_FAILED, reason)
    assert (record.exit_code, record.stdout.total_bytes) == (None, 0)
    assert program in (record.detail or "")
    assert (await run(guest, command("true"))).exit_code == 0


@pytest.mark.requirement("EX-08")
@pytest.mark.parametrize("text", ["no-such-cmd-xyz", "exit 127"])
async def test_shells_own_127_is_an_exit(guest: Guest, text: str) -> None:
    """EX-08."""
    record = await sh(guest, text)
    assert (record.outcome, record.exit_code, record.stdout.head) == (Outcome.EXITED, 127, b"")


@pytest.mark.requirement("EX-09")
@pytest.mark.parametrize("cwd", ["/nope", "/etc/hostname"])
async def test_bad_working_directory_is_named_and_nothing_runs(guest: Guest, cwd: str) -> None:
    """EX-09."""
    record = await sh(guest, "echo ran > /workspace/marker", cwd=cwd)
    assert (record.outcome, record.reason) == (Outcome.START_FAILED, StartFailure.BAD_CWD)
    assert cwd in (record.detail or "")
    assert (await sh(guest, "test -e /workspace/marker")).exit_code == 1


async def test_a_workdir_that_is_gone_is_told_apart_from_a_place_that_the_call_named(
    guest: Guest,
) -> None:
    assert not (await sh(guest, "true", cwd="below")).from_inside
    await guest.files.delete("/workspace", recursive=True)
    for cwd, from_inside in (("", True), ("below", True), ("/workspace", False)):
        record = await sh(guest, "true", cwd=cwd)
        assert (record.reason, record.from_inside) == (StartFailure.BAD_CWD, from_inside)


@pytest.mark.requirement("EX-10")
async def test_argument_over_the_kernels_limit_is_a_typed_failure(guest: Guest) -> None:
    """EX-10."""
    record = await run(guest, command("echo", "x" * 200_000))
    assert (record.outcome, record.reason) == (Outcome.START_FAILED, StartFailure.TOO_LONG)
    whole = await run(guest, command("echo", "x" * 100_000))
    assert (whole.exit_code, whole.stdout.total_bytes) == (0, 100_001)


@pytest.mark.requirement("EX-11")
@pytest.mark.requirement("EX-12")
@pytest.mark.parametrize(
    "options",
    [{"env": {"A\0": "1"}}, {"env": {"A": "1\0"}}, {"env": {"": "1"}}, {"env": {"A=B": "1"}},
     {"cwd": "/\0"}],
    ids=["nul in name", "nul in value", "empty name", "equals in name", "nul in cwd"],
)  # fmt: skip
async def test_what_no_process_can_be_given_is_refused(
    guest: Guest, options: dict[str, object]
) -> None:
    """EX-11, EX-12."""
    with pytest.raises(SandboxdError) as refused:
        await run(guest, command("true", **options))
    assert refused.value.code is ErrorCode.BAD_REQUEST


@pytest.mark.requirement("EX-11")
async def test_nul_in_an_argument_is_refused(guest: Guest) -> None:
    """EX-11."""
    with pytest.raises(SandboxdError) as refused:
        await run(guest, command("echo", "a\0b"))
    assert refused.value.code is ErrorCode.BAD_REQUEST


@pytest.mark.requirement("EX-12")
@pytest.mark.parametrize("value", ["l1\nl2", "x=y=z", "", "$(id) `id` $HOME 'q' \"q\"", "é€\t"])
async def test_environment_values_arrive_byte_by_byte(guest: Guest, value: str) -> None:
    """EX-12."""
    record = await run(guest, command("printenv", "X", env={"X": value}))
    assert (record.exit_code, record.stdout.head) == (0, value.encode() + b"\n")


async def test_working_directory_is_the_claims_and_relative_ones_start_there(guest: Guest) -> None:
    assert (await run(guest, command("pwd"))).stdout.head == b"/workspace\n"
    await guest.files.mkdir("sub/dir")
    record = await run(guest, command("pwd", cwd="sub/dir"))
    assert record.stdout.head == b"/workspace/sub/dir\n"
    assert (await sh(guest, "echo $PWD", cwd="sub")).stdout.head == b"/workspace/sub\n"


async def test_same_id_attaches_and_never_runs_twice(guest: Guest) -> None:
    """TO-09."""
    order = script("echo x >> /workspace/n; cat /workspace/n")
    first, second = await run(guest, order), await run(guest, order)
    assert first == second
    assert (await guest.files.stat("/workspace/n")).size == 2


async def test_same_id_with_another_command_is_a_conflict(guest: Guest) -> None:
    await run(guest, command("true", exec_id="one"))
    with pytest.raises(SandboxdError) as refused:
        await run(guest, command("false", exec_id="one"))
    assert refused.value.code is ErrorCode.CONFLICT


async def test_many_callers_of_one_id_share_one_run(guest: Guest) -> None:
    order = script("echo x >> /workspace/n; sleep 0.1")
    ends: list[ExecRecord] = []

    async def one() -> None:
        ends.append(await run(guest, order))

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(one)
    assert len(set(map(repr, ends))) == 1
    assert (await guest.files.stat("/workspace/n")).size == 2


@pytest.mark.parametrize("exec_id", ["..", ".", "a:b@c._-", "x" * 128])
async def test_any_id_of_the_alphabet_names_a_command(guest: Guest, exec_id: str) -> None:
    await run(guest, command("echo", "hi", exec_id=exec_id))
    with anyio.fail_after(5):
        assert (await guest.look_exec(exec_id)).stdout.head == b"hi\n"


async def test_command_without_wait_is_seen_running_and_then_ended(guest: Guest) -> None:
    with anyio.fail_after(10):
        started = await guest.run(script("cat; exit 3", stdin_open=True), wait=False)
        assert (started.outcome, started.exit_code) == (None, None)
        assert (await guest.look_exec(started.exec_id, wait_s=0.05)).outcome is None
        await guest.write_stdin(started.exec_id, b"", eof=True)
    assert (await end_of(guest, started.exec_id)).exit_code == 3


async def test_failure_to_start_is_told_at_once_without_wait(guest: Guest) -> None:
    with anyio.fail_after(5):
        record = await guest.run(command("no-such-cmd"), wait=False)
    assert record.outcome is Outcome.START_FAILED


async def test_caller_that_goes_away_ends_nothing(guest: Guest) -> None:
    """TO-09."""
    order = script("echo x >> /workspace/n; sleep 1; echo y >> /workspace/n")
    with anyio.move_on_after(0.3) as scope:
        await guest.run(order, wait=True)
    assert scope.cancelled_caught
    assert (await end_of(guest, order.exec_id)).exit_code == 0
    assert (await guest.files.stat("/workspace/n")).size == 4


async def test_commands_are_listed_newest_first_without_output(guest: Guest) -> None:
    for name in ("a", "b", "c"):
        await run(guest, command("echo", name, exec_id=name))
    with anyio.fail_after(5):
        listed = await guest.list_execs()
    assert [record.exec_id for record in listed] == ["c", "b", "a"]
    assert {(r.stdout.total_bytes, r.stdout.head) for r in listed} == {(2, b"")}


async def test_unknown_command_is_not_found(guest: Guest) -> None:
    with anyio.fail_after(5), pytest.raises(SandboxdError) as refused:
        await guest.look_exec("never")
    assert refused.value.code is ErrorCode.NOT_FOUND


async def test_record_has_its_times(guest: Guest) -> None:
    record = await sh(guest, "sleep 0.2")
    assert 0.2 <= record.duration_s < 5
    assert record.started_at > 1_700_000_000


@pytest.mark.requirement("EX-20")
async def test_process_left_by_a_command_lives_on(guest: Guest) -> None:
    """EX-20."""
    await sh(guest, "(sleep 0.3; echo late > /workspace/late) & true")
    record = await sh(guest, "sleep 1; cat /workspace/late")
    assert (record.exit_code, record.stdout.head) == (0, b"late\n")


@pytest.mark.requirement("EX-18")
async def test_program_that_prompts_sees_the_end_of_its_input(
    guest: Guest, backend: Backend
) -> None:
    """EX-18."""
    need_any_program(backend)
    record = await sh(guest, "while ! read a; do echo again; done", timeout_s=0.5)
    assert record.outcome is Outcome.TIMEOUT
    assert record.stdout.truncated or record.stdout.head.startswith(b"again\n")


async def test_running_command_is_counted(guest: Guest) -> None:
    exec_id = await start(guest, script("cat", stdin_open=True))
    with anyio.fail_after(5):
        hello = await guest.hello()
        assert (hello.execs_running, hello.idle_s) == (1, 0)
        await guest.write_stdin(exec_id, b"", eof=True)
    await end_of(guest, exec_id)
    with anyio.fail_after(5):
        assert (await guest.hello()).execs_running == 0
