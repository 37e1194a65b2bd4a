"""The SDK as its users have it, against a daemon that is a process of its own."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import anyio
import pytest

from sandboxd_client import (
    ApiUnreachable,
    AsyncSandbox,
    AsyncSandboxd,
    BadRequest,
    Capacity,
    CommandFailed,
    Conflict,
    Ended,
    ExecEvent,
    FileContent,
    FileIsDirectory,
    FileNotFound,
    LeaseEnded,
    NotFound,
    Outcome,
    SandboxdError,
    Started,
    Stderr,
    Stdout,
)
from tests.support.daemon import RunningDaemon

pytestmark = pytest.mark.anyio


def _noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)  # noqa: S311 - the same in every run, no secret


@pytest.fixture
async def sandbox(client: AsyncSandboxd) -> AsyncSandbox:
    """A sandbox that the test may leave as it likes: the daemon is ephemeral."""
    return await client.lease("python", timeout_s=120)


async def test_a_rollout_leases_writes_runs_and_gives_back(client: AsyncSandboxd) -> None:
    async with client.lease(
        "python", env={"WHO": "you"}, files={"a.txt": "from the lease\n"}, labels={"t": "rollout"}
    ) as sandbox:
        assert sandbox.granted is not None
        assert sandbox.granted.labels == {"t": "rollout"}
        await sandbox.files.write("b.txt", b"from the SDK\n")
        result = await sandbox.exec("cat a.txt b.txt; printenv WHO", timeout_s=10)
        assert result.stdout == "from the lease\nfrom the SDK\nyou\n"
        assert result.ok
        assert result.check() is result
    info = await sandbox.release(wait_s=5)  # was released already: waits until it is gone
    assert (info.state, info.end and info.end.reason) == ("ended", "released")


async def test_a_lease_without_with_lives_until_released(client: AsyncSandboxd) -> None:
    held = await client.lease("python")
    again = client.sandbox(held.id)
    assert (await again.exec(["echo", "still here"])).stdout == "still here\n"
    await again.release()
    await again.release()
    with pytest.raises(LeaseEnded) as caught:
        await held.exec("true")
    assert caught.value.details["end"]["reason"] == "released"
    assert caught.value.sandbox_id == held.id


async def test_a_non_zero_exit_is_a_result_and_check_raises_it(sandbox: AsyncSandbox) -> None:
    result = await sandbox.exec("echo why >&2; exit 3")
    assert (result.outcome, result.exit_code, result.mask) == (Outcome.EXITED, 3, False)
    with pytest.raises(CommandFailed, match="exit code 3: why") as caught:
        result.check()
    assert caught.value.result is result
    assert not caught.value.mask


async def test_a_missing_program_is_start_failed_and_not_an_error(sandbox: AsyncSandbox) -> None:
    result = await sandbox.exec(["no-such-cmd-xyz"])
    assert (result.outcome, result.exit_code) == (Outcome.START_FAILED, None)
    assert result.error is not None
    assert result.error.reason == "not_found"


@pytest.mark.requirement("HT-08")
async def test_eight_ways_to_go_wrong_are_told_apart_and_mask_separates_them(
    client: AsyncSandboxd, sandbox: AsyncSandbox
) -> None:
    """What is the agent's own is scored, what is not is masked."""
    exited = await sandbox.exec("exit 1")
    timed_out = await sandbox.exec(["sleep", "60"], timeout_s=0.2)
    process = await sandbox.start(["sleep", "60"])
    assert await process.kill()
    killed = await process.wait()
    outcomes = [exited.outcome, timed_out.outcome, killed.outcome]
    assert outcomes == [Outcome.EXITED, Outcome.TIMEOUT, Outcome.KILLED]
    assert not any(result.mask for result in (exited, timed_out, killed))

    ended = await client.lease("python")
    await ended.release()
    nobody = AsyncSandboxd("http://127.0.0.1:9", patience_s=0)
    async with client.lease("single"):
        errors = [
            await _error_of(ended.exec("true")),
            await _error_of(client.sandbox("sbx-nope").exec("true")),
            await _error_of(client.lease("single", wait_timeout_s=0.1)),
            await _error_of(client.lease("no-such-template")),
            await _error_of(nobody.version()),
        ]
    kinds = [type(error) for error in errors]
    assert kinds == [LeaseEnded, NotFound, Capacity, BadRequest, ApiUnreachable]
    # What the caller itself gave back is no fault of anybody's; all else is left out of the batch.
    assert [error.mask for error in errors] == [False, True, True, True, True]


async def _error_of(call: Awaitable[object]) -> SandboxdError:
    with pytest.raises(SandboxdError) as caught:
        await call
    return caught.value


async def test_a_stream_yields_each_piece_and_ends_with_the_result(sandbox: AsyncSandbox) -> None:
    seen = [event async for event in sandbox.stream("echo out; echo err >&2; exit 4")]
    match seen:
        case [Started(), *pieces, Ended(result=result)]:
            assert result.exit_code == 4
        case _:
            pytest.fail(f"not a whole stream: {seen}")
    assert b"".join(p.data for p in pieces if isinstance(p, Stdout)) == b"out\n"
    assert b"".join(p.data for p in pieces if isinstance(p, Stderr)) == b"err\n"
    numbers = [event.seq for event in seen]
    assert numbers == sorted(set(numbers))


@pytest.mark.requirement("ST-02")
async def test_binary_output_is_exact_in_streams_and_results(sandbox: AsyncSandbox) -> None:
    """ST-02: undecodable bytes arrive as they are."""
    data = _noise(300_000)
    await sandbox.files.write("r.bin", data)
    result = await sandbox.exec(["cat", "r.bin"], binary=True)
    assert result.stdout_raw == data
    pieces = [e.data async for e in sandbox.stream(["cat", "r.bin"]) if isinstance(e, Stdout)]
    assert b"".join(pieces) == data


async def test_a_process_takes_input_and_is_found_again_by_its_id(
    client: AsyncSandboxd, sandbox: AsyncSandbox
) -> None:
    process = await sandbox.start(["cat"], stdin_open=True)
    await process.write("one ")
    found = client.sandbox(sandbox.id).process(process.exec_id)
    await found.write(b"two ")  # learns first how much was taken
    assert (await found.info()).running
    await found.close_stdin()
    result = await process.wait()
    assert (result.stdout, result.exit_code) == ("one two ", 0)
    assert await process.output(offset=4) == (b"two ", 8)
    with pytest.raises(Conflict):
        await found.write(b"late")
    assert not await process.signal("TERM")


async def test_events_of_a_process_go_on_after_a_number(sandbox: AsyncSandbox) -> None:
    process = await sandbox.start("echo a; echo b >&2; echo c")
    everything: list[ExecEvent] = [event async for event in process.events()]
    assert isinstance(everything[-1], Ended)
    for place, event in enumerate(everything[:-1]):
        rest = [e async for e in process.events(after=event.seq)]
        assert rest == everything[place + 1 :]


async def test_waiting_for_a_process_gives_up_in_time_and_the_command_runs_on(
    sandbox: AsyncSandbox,
) -> None:
    process = await sandbox.start(["cat"], stdin_open=True)
    assert (await process.wait(timeout_s=0.05)).running
    await process.close_stdin()
    assert (await process.wait()).ok


@pytest.mark.requirement("EX-06")
@pytest.mark.parametrize("size", [1, (1 << 16) + 1, (4 << 20) + 1, 9 << 20])
async def test_input_of_any_size_arrives_whole(sandbox: AsyncSandbox, size: int) -> None:
    """EX-06: also beyond what fits one request."""
    result = await sandbox.exec(["wc", "-c"], stdin=bytes(size), timeout_s=15)
    assert (result.stdout.strip(), result.exit_code) == (str(size), 0)


async def test_long_input_to_a_command_that_reads_none_of_it_is_no_failure(
    sandbox: AsyncSandbox,
) -> None:
    result = await sandbox.exec(["true"], stdin=bytes(5 << 20), timeout_s=15)
    assert (result.outcome, result.exit_code) == (Outcome.EXITED, 0)


async def test_a_shell_remembers_and_ends_with_its_block(sandbox: AsyncSandbox) -> None:
    async with sandbox.shell() as shell:
        await shell.run("cd /tmp; X=1")
        assert (await shell.run("pwd; echo $X")).stdout == "/tmp\n1\n"
        assert await shell.state() == "idle"
    with pytest.raises(SandboxdError):
        await shell.run("true")


async def test_files_round_trip_whole_in_parts_and_in_chunks(sandbox: AsyncSandbox) -> None:
    data = _noise(3_000_000)
    info = await sandbox.files.write("deep/er/file", data, mode=0o640)
    assert (info.size, info.mode) == (len(data), 0o640)
    assert await sandbox.files.read("deep/er/file") == data
    assert await sandbox.files.read("deep/er/file", offset=7, limit=5) == data[7:12]
    chunks = [chunk async for chunk in sandbox.files.read_chunks("deep/er/file")]
    assert b"".join(chunks) == data
    assert await sandbox.files.exists("deep/er")
    await sandbox.files.delete("deep", recursive=True)
    assert not await sandbox.files.exists("deep")


async def test_files_are_written_from_whatever_can_be_read(
    sandbox: AsyncSandbox, tmp_path: Path
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d" % number

    await sandbox.files.write("a", chunks())
    assert await sandbox.files.read("a") == b"012"
    (tmp_path / "local").write_bytes(b"from a file")
    with (tmp_path / "local").open("rb") as file:
        await sandbox.files.write("b", file)
    assert await sandbox.files.read_text("b") == "from a file"


async def test_file_errors_are_told_apart(sandbox: AsyncSandbox) -> None:
    await sandbox.files.mkdir("here")
    with pytest.raises(FileNotFound):
        await sandbox.files.read("nowhere")
    with pytest.raises(FileIsDirectory):
        await sandbox.files.read("here")
    await sandbox.files.write("latin", b"gr\xfc\xdfe")
    with pytest.raises(UnicodeDecodeError) as caught:
        await sandbox.files.read_text("latin")
    assert caught.value.start == 2


async def test_a_local_error_in_an_upload_is_the_callers_own_and_leaves_nothing(
    sandbox: AsyncSandbox,
) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 100_000
        raise OSError("the disk here is broken")

    with pytest.raises(OSError, match="the disk here is broken"):
        await sandbox.files.write("never", broken())
    assert not await sandbox.files.exists("never")
    assert (await sandbox.exec("true")).ok


async def test_directories_go_up_and_come_down_equal(sandbox: AsyncSandbox, tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    (there / "sub" / "empty").mkdir(parents=True)
    (there / "sub" / "big").write_bytes(_noise(2_500_000))
    (there / "run.sh").write_text("#!/bin/sh\n")
    (there / "run.sh").chmod(0o755)
    (there / ("n" * 120)).write_text("a long name")
    (there / "link").symlink_to("sub/big")
    await sandbox.files.upload(there, "target")
    await sandbox.files.download("target", back)
    assert _tree(back) == _tree(there)
    await sandbox.files.upload(there / "run.sh", "target/sub/")
    assert (await sandbox.files.stat("target/sub/run.sh")).mode == 0o755
    await sandbox.files.download("target/run.sh", back / "sub")
    assert (back / "sub" / "run.sh").read_text() == "#!/bin/sh\n"


def _tree(root: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            found[name] = path.readlink()
        elif path.is_dir():
            found[name] = None
        else:
            found[name] = (path.stat().st_mode & 0o777, path.read_bytes())
    return found


@pytest.mark.requirement("FI-08")
async def test_a_listing_names_everything_whatever_its_name(sandbox: AsyncSandbox) -> None:
    """FI-08: names are data."""
    names = {"a\nb", "-rf", "'", '"', "$(touch PWN)", ";id", "*", "a b ", "~", "🙂"}
    names |= {"\u00e9", "e\u0301"}  # the same letter, composed and not
    for name in names:
        await sandbox.files.write(f"odd/{name}", name)
    assert {info.name for info in await sandbox.files.list("odd")} == names
    for name in names:
        assert await sandbox.files.read_text(f"odd/{name}") == name


async def test_sandboxes_are_found_and_released_by_run_and_label(client: AsyncSandboxd) -> None:
    run = f"run-{random.SystemRandom().randrange(1 << 60)}"
    leased = {(await client.lease("python", run_id=run, labels={"n": str(n)})).id for n in range(3)}
    assert {info.id for info in await client.sandboxes(run_id=run)} == leased
    assert len(await client.sandboxes(run_id=run, labels={"n": "1"})) == 1
    released = await client.release(run_id=run)
    assert set(released.released) == leased  # type: ignore[arg-type]
    assert await client.sandboxes(run_id=run) == []
    with pytest.raises(BadRequest):
        await client.release()


async def test_leases_are_renewed_and_tokens_are_for_one_sandbox(
    client: AsyncSandboxd, sandbox: AsyncSandbox, daemon: RunningDaemon
) -> None:
    before = await sandbox.info()
    after = await sandbox.renew(3000)
    assert (after.expires_at or 0) > (before.expires_at or 0) + 1000
    token = await sandbox.token(ttl_s=60)
    async with AsyncSandboxd(daemon.url, key=token.token) as limited:
        assert (await limited.sandbox(sandbox.id).exec("echo in")).stdout == "in\n"
        with pytest.raises(SandboxdError):
            await limited.lease("python")
    assert "leased" in [entry["event"] async for entry in sandbox.logs()]


async def test_grading_begins_once_ends_what_runs_and_keeps_the_files(
    client: AsyncSandboxd,
) -> None:
    with anyio.fail_after(10):
        async with client.lease("python", files={"work": "done"}, grading_s=30) as sandbox:
            agent = await sandbox.start("sleep 100")
            info = await sandbox.begin_grading(60)
            assert info.phase == "grading"
            assert not (await agent.wait()).ok
            assert (await sandbox.exec("cat work")).stdout == "done"
            with pytest.raises(Conflict):
                await sandbox.begin_grading(60)


async def test_the_daemon_tells_of_itself(client: AsyncSandboxd) -> None:
    version = await client.version()
    assert (version.api, version.backend) == ("v1", "fake")
    assert {template.name for template in await client.templates()} >= {"python", "single"}
    assert {pool.template for pool in await client.pools()} >= {"python", "single"}


async def test_images_are_had_ready_and_listed(client: AsyncSandboxd) -> None:
    with anyio.fail_after(10):
        asked = [f"ready-{number}" for number in range(130)]  # more than one call takes
        found = await client.prefetch([*asked, asked[0]])
        assert [image.reference for image in found] == asked
        assert {image.state for image in found} == {"present"}
        assert {image.reference for image in await client.images()} >= set(asked)
        assert await client.prefetch([]) == []
        (begun,) = await client.prefetch(["only-begun"], timeout_s=0)
        assert begun.state in {"pulling", "present"}


async def test_files_of_a_lease_keep_their_mode(client: AsyncSandboxd) -> None:
    content = FileContent("#!/bin/sh\necho ran\n", mode=0o755)
    async with client.lease("python", files={"bin/tool": content}) as sandbox:
        assert (await sandbox.files.stat("bin/tool")).mode == 0o755


async def test_the_same_idempotency_key_gives_the_same_sandbox(client: AsyncSandboxd) -> None:
    """HT-03."""
    key = f"key-{random.SystemRandom().randrange(1 << 60)}"
    got: list[str] = []

    async def lease() -> None:
        got.append((await client.lease("python", idempotency_key=key)).id)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(lease)
    assert len(set(got)) == 1
    with pytest.raises(Conflict):
        await client.lease("python", idempotency_key=key, workdir="/elsewhere")


async def test_an_unknown_option_is_refused_by_name_before_anything_is_sent(
    client: AsyncSandboxd, sandbox: AsyncSandbox
) -> None:
    with pytest.raises(TypeError, match="tiemout_s"):
        await client.lease("python", tiemout_s=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="tiemout_s"):
        await sandbox.exec("true", tiemout_s=3)  # type: ignore[call-arg]


async def test_a_lease_may_bring_its_first_command(client: AsyncSandboxd) -> None:
    async with client.lease("python", start=["sh", "-c", "echo began"]) as sandbox:
        assert (await sandbox.process("start").wait()).stdout == "began\n"
