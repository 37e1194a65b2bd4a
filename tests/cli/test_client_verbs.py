"""The client verbs as processes, against a daemon of their own."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import anyio
import pytest

from tests.cli.conftest import Program


async def lease(sandboxd: Program, *more: str) -> str:
    done = await sandboxd.run("lease", "python", *more)
    assert (done.code, done.err) == (0, "")
    return done.out.strip()


async def test_a_lease_is_listed_used_and_given_back(sandboxd: Program) -> None:
    sandbox = await lease(sandboxd, "--env", "A=1", "--label", "kind=test", "--run", "r1")
    listed = await sandboxd.run("ls", "--label", "kind=test", "-o", "json")
    assert [found["id"] for found in json.loads(listed.out)["sandboxes"]] == [sandbox]
    table = await sandboxd.run("ls")
    assert sandbox in table.out
    assert "kind=test" in table.out

    said = await sandboxd.run("exec", sandbox, "--", "sh", "-c", "echo $A; echo oops >&2; exit 3")
    assert (said.code, said.out) == (3, "1\n")
    assert said.err.startswith("oops\n")

    assert (await sandboxd.run("logs", sandbox)).code == 0
    assert (await sandboxd.run("release", sandbox)).code == 0
    assert (await sandboxd.run("ls", "-q")).out == ""


async def test_exec_passes_its_input_on_until_the_end_of_file(sandboxd: Program) -> None:
    sandbox = await lease(sandboxd)
    data = bytes(range(256)) * 1000
    counted = await sandboxd.run("exec", sandbox, "--", "wc", "-c", stdin=data)
    assert (counted.code, counted.out.strip()) == (0, str(len(data)))
    nothing = await sandboxd.run("exec", "-n", sandbox, "--", "cat", stdin=b"not passed on")
    assert (nothing.code, nothing.out) == (0, "")


@pytest.mark.parametrize(
    ("command", "options", "status", "words"),
    [
        (["no-such-program"], [], 127, "start_failed"),
        (["sleep", "60"], ["--timeout", "0.2"], 124, "timeout"),
        (["true"], ["--cwd", "/nowhere"], 126, "start_failed"),
    ],
)
async def test_exec_leaves_with_the_commands_status_and_says_why(
    sandboxd: Program, command: list[str], options: list[str], status: int, words: str
) -> None:
    sandbox = await lease(sandboxd)
    done = await sandboxd.run("exec", *options, sandbox, "--", *command)
    assert done.code in {status, 127 if status == 126 else status}
    assert done.err.startswith("sandboxd: the command did not exit: " + words)


async def test_exec_leaves_with_125_where_there_is_no_status(sandboxd: Program) -> None:
    done = await sandboxd.run("exec", "sbx-none", "--", "true")
    assert done.code == 125
    assert done.err.startswith("sandboxd: ")
    assert "Traceback" not in done.err


async def test_ctrl_c_reaches_the_command(sandboxd: Program) -> None:
    sandbox = await lease(sandboxd)
    script = ("exec", "-n", sandbox, "--", "sh", "-c", "echo started; sleep 60")
    async with sandboxd.running(*script) as process:
        assert process.stdout is not None
        with anyio.fail_after(15):
            assert await process.stdout.receive() == b"started\n"
            process.send_signal(signal.SIGINT)
            assert await process.wait() in {128 + signal.SIGINT, 137}


async def test_files_and_folders_go_in_and_come_back(sandboxd: Program, tmp_path: Path) -> None:
    sandbox = await lease(sandboxd)
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "a.bin").write_bytes(bytes(range(256)))
    (tmp_path / "in" / "deep" / "b.txt").write_text("é\n")
    assert (await sandboxd.run("cp", str(tmp_path / "in"), f"{sandbox}:there")).code == 0
    assert (await sandboxd.run("cp", f"{sandbox}:there", str(tmp_path / "out"))).code == 0
    assert (tmp_path / "out" / "a.bin").read_bytes() == bytes(range(256))
    assert (tmp_path / "out" / "deep" / "b.txt").read_text() == "é\n"

    assert (await sandboxd.run("cp", "-", f"{sandbox}:x", stdin=b"by pipe")).code == 0
    assert (await sandboxd.run("cp", f"{sandbox}:x", "-")).out == "by pipe"
    one = await sandboxd.run("cp", f"{sandbox}:there/a.bin", f"{tmp_path}/")
    assert one.code == 0
    assert (tmp_path / "a.bin").read_bytes() == bytes(range(256))


@pytest.mark.parametrize("sides", [("a", "b"), ("sbx-1:/a", "sbx-2:/b")])
async def test_cp_wants_one_side_here_and_one_there(
    sandboxd: Program, sides: tuple[str, str]
) -> None:
    done = await sandboxd.run("cp", *sides)
    assert done.code == 2
    assert "ID:PATH" in done.err


async def test_cp_of_what_is_not_there_is_a_line(sandboxd: Program, tmp_path: Path) -> None:
    sandbox = await lease(sandboxd)
    for sides in [(f"{tmp_path}/none", f"{sandbox}:x"), (f"{sandbox}:none", str(tmp_path / "x"))]:
        done = await sandboxd.run("cp", *sides)
        assert done.code == 1
        assert done.err.startswith("sandboxd: ")
        assert "Traceback" not in done.err


async def test_a_run_is_released_as_a_whole(sandboxd: Program) -> None:
    for _ in range(2):
        await lease(sandboxd, "--run", "r1")
    other = await lease(sandboxd)
    done = await sandboxd.run("release", "--run", "r1", "-o", "json")
    assert done.code == 0
    assert (await sandboxd.run("ls", "-q")).out == f"{other}\n"


async def test_a_zero_of_a_lease_is_passed_on(sandboxd: Program) -> None:
    told = json.loads(
        (await sandboxd.run("lease", "python", "--idle-timeout", "0", "-o", "json")).out
    )
    assert told["idle_expires_at"] is None
    there = await sandboxd.run("lease", "python", "--wait", "0")  # stock that is there, or nothing
    assert there.code == 0 or "capacity" in there.err


async def test_a_lease_asks_for_the_ways_out_that_its_flags_say(sandboxd: Program) -> None:
    boxed = ("--network", "none", "--grading", "5")
    told = json.loads((await sandboxd.run("lease", "python", *boxed, "-o", "json")).out)
    assert told["network"] == "none"
    for flag, named in (
        ("--network=allow=a.test,*.b.test:443", "allow"),
        ("--forward=80=http://a", "forwards"),
    ):
        refused = await sandboxd.run(
            "lease", "python", flag
        )  # the fake's sandboxes have no network
        assert refused.code == 1
        assert named in refused.err


@pytest.mark.parametrize(
    "wrong", ["--network=all", "--network=allow=a,", "--forward=0=http://a", "--forward=8000"]
)
async def test_a_way_out_that_is_none_is_a_wrong_argument(sandboxd: Program, wrong: str) -> None:
    done = await sandboxd.run("lease", "python", wrong)
    assert done.code == 2
    assert wrong.partition("=")[2] in done.err


async def test_release_goes_on_after_an_id_that_is_not_there(sandboxd: Program) -> None:
    sandbox = await lease(sandboxd)
    done = await sandboxd.run("release", "sbx-none", sandbox)
    assert done.code == 1
    assert "sbx-none" in done.err
    assert (await sandboxd.run("ls", "-q")).out == ""
    assert (await sandboxd.run("release")).code == 2


async def test_pools_shows_every_template(sandboxd: Program) -> None:
    told = json.loads((await sandboxd.run("pools", "-o", "json")).out)
    assert [pool["template"] for pool in told["pools"]] == ["python"]
    assert "TEMPLATE" in (await sandboxd.run("pools")).out


async def test_images_are_had_ready_and_listed(sandboxd: Program) -> None:
    done = await sandboxd.run("prefetch", "one", "two", "-o", "json")
    assert done.code == 0, done.err
    told = json.loads(done.out)["images"]
    assert [(image["reference"], image["state"]) for image in told] == [
        ("one", "present"),
        ("two", "present"),
    ]
    listed = json.loads((await sandboxd.run("images", "-o", "json")).out)["images"]
    assert {image["reference"] for image in listed} == {"host", "one", "two"}
    assert "IMAGE" in (await sandboxd.run("images")).out


async def test_an_unknown_template_is_a_line_that_names_it(sandboxd: Program) -> None:
    done = await sandboxd.run("lease", "pyton")
    assert done.code == 1
    assert "pyton" in done.err


async def test_nobody_reading_is_no_traceback(sandboxd: Program) -> None:
    sandbox = await lease(sandboxd)
    ours, theirs = os.pipe()
    argv = ("exec", "-n", sandbox, "--", "seq", "200000")
    async with sandboxd.running(*argv, stdout=theirs) as process:
        os.close(theirs)
        assert process.stderr is not None
        with anyio.fail_after(15):
            await anyio.wait_readable(ours)
            os.close(ours)
            said = b"".join([chunk async for chunk in process.stderr])
            code = await process.wait()
    assert b"Traceback" not in said
    assert code == 141
