"""What code inside a sandbox does to have its rollout left out: it is scored all the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from sandboxd_client import Sandbox, Sandboxd
from tests.contract.speaker import eventually
from tests.contract.verdicts.kinds import DIED_BY_ITSELF, assert_ended, refused, verdict

pytestmark = pytest.mark.timeout(120)

_SCORED = ("start_failed", "start_failed", "agent", False, 126)
_THE_CALLERS = ("start_failed", "start_failed", "client", True, 126)

_LEASED = """
import fcntl, os, signal, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
held = os.open("answer", os.O_CREAT | os.O_RDWR)
fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
open("held", "w").close()
time.sleep(300)
"""
_FILL = """
import os, time
for n in range(200):
    try:
        if os.fork() == 0:
            time.sleep(300)
    except OSError:
        break
open("/tmp/full", "w").close()
time.sleep(300)
"""


@pytest.mark.parametrize(
    "spoil",
    [
        'rm -rf "$PWD"',
        'here=$PWD; cd /; rm -rf "$here"; mkfifo "$here"',
        'here=$PWD; cd /; rm -rf "$here"; ln -s "$here" "$here"',
    ],
    ids=["removed", "fifo", "loop"],
)
def test_a_workdir_that_was_spoiled_inside_is_scored_where_the_call_named_none(
    box: Sandbox, spoil: str
) -> None:
    workdir = box.exec("pwd").stdout.strip()
    assert box.exec(spoil).ok
    for cwd in ("", "below"):
        result = box.exec("true", cwd=cwd)
        assert verdict(result) == _SCORED
        assert result.error is not None
        assert result.error.reason == "bad_cwd"
    shell = refused(box.shell)
    assert (shell.code, shell.fault, shell.mask) == ("bad_request", "agent", False)
    assert verdict(box.exec("true", cwd=workdir)) == _THE_CALLERS
    assert box.exec("true", cwd="/").ok


def test_a_place_below_a_workdir_that_is_there_is_the_callers(box: Sandbox) -> None:
    assert verdict(box.exec("true", cwd="below")) == _THE_CALLERS
    error = refused(lambda: box.shell(cwd="/nope"))
    assert (error.code, error.fault, error.mask) == ("bad_request", "client", True)


def test_a_workdir_closed_to_its_own_user_is_scored_only_if_he_was_ever_in_it(
    client: Sandboxd,
) -> None:
    if not client.version().capabilities["other_users"]:
        pytest.skip("sandboxes here have one user alone")
    with client.lease("python", user="1000") as sandbox:
        sandbox.exec("true")
        sandbox.exec('chmod 000 "$PWD"', user="0", cwd="/")
        workdir = sandbox.exec("true")
    if workdir.ok:
        pytest.skip("nothing is closed to this user")
    assert verdict(workdir) == _SCORED


def test_another_user_who_may_not_enter_the_workdir_may_never_have_been_able_to(
    box: Sandbox,
) -> None:
    box.exec('chmod 700 "$PWD"')
    assert verdict(box.exec("true", user="1000")) == _THE_CALLERS


def test_a_shell_that_its_own_text_ended_is_scored_and_one_that_a_caller_ended_is_not(
    box: Sandbox,
) -> None:
    ends, killed = box.shell(), box.shell()
    assert ends.run("exit 0").shell_ended
    error = refused(lambda: ends.run("true"))
    assert (error.code, error.fault, error.mask) == ("conflict", "agent", False)
    assert killed.run("sleep 300 & kill -9 $$").shell_ended
    assert not refused(lambda: killed.run("true")).mask
    third = box.shell()
    third.close()
    assert refused(lambda: third.run("true")).fault == "client"


def test_input_that_the_command_itself_no_longer_reads_is_its_doing(box: Sandbox) -> None:
    deaf = box.start("exec <&-; echo closed; sleep 300", stdin_open=True)
    eventually(lambda: box.execs()[0].stdout_bytes > 0, within_s=10, what="it closes its input")
    error = refused(lambda: deaf.write(b"x" * 200_000))
    assert (error.code, error.fault, error.mask) == ("conflict", "agent", False)


def test_input_that_a_caller_ended_or_whose_command_he_killed_is_his(box: Sandbox) -> None:
    told, killed = box.start("sleep 300", stdin_open=True), box.start("cat", stdin_open=True)
    told.close_stdin()
    killed.signal("KILL")
    killed.wait()
    for process in (told, killed):
        error = refused(lambda: process.write(b"x"))  # noqa: B023 - called at once
        assert (error.code, error.fault, error.mask) == ("conflict", "client", True)


def test_a_file_that_a_process_inside_holds_by_a_lease_hangs_nobody_and_is_scored(
    box: Sandbox,
) -> None:
    box.start(["python3", "-c", _LEASED])
    eventually(lambda: box.files.exists("held"), within_s=20, what="it holds the file")
    error = refused(lambda: box.files.read("answer"))
    assert (error.code, error.fault, error.mask) == ("conflict", "agent", False)


def test_a_link_to_a_name_that_is_too_long_is_not_the_callers(box: Sandbox) -> None:
    box.exec(["python3", "-c", "import os; os.symlink('z' * 300, 'answer')"])
    assert refused(lambda: box.files.read("answer")).fault == "agent"
    named = refused(lambda: box.files.read("z" * 300))
    assert (named.code, named.fault, named.mask) == ("name_too_long", "client", True)


def test_a_sandbox_full_of_its_own_processes_has_no_shell_by_its_own_doing(small: Sandbox) -> None:
    small.start(["python3", "-c", _FILL])
    eventually(lambda: small.files.exists("/tmp/full"), within_s=20, what="it is full")
    assert verdict(small.exec(["true"])) == _SCORED
    error = refused(small.shell)
    assert (error.code, error.fault, error.mask) == ("conflict", "agent", False)


@pytest.mark.parametrize(
    "at_it",
    ["kill -9 $PPID; sleep 0.2; exit 3", "kill -STOP $PPID; sleep 0.2; exit 3"],
    ids=["killed", "stopped"],
)
def test_who_does_away_with_what_tells_of_its_end_is_told_of_all_the_same(
    box: Sandbox, at_it: str
) -> None:
    assert verdict(box.exec(at_it, timeout_s=20)) == ("exited", None, None, False, 3)


@pytest.mark.parametrize(
    "instead", ["true", "mkdir s.sock", "mkfifo s.sock", "ln -s s.sock s.sock"]
)
def test_the_guests_socket_taken_away_from_inside_is_scored(
    backend: str, box: Sandbox, instead: str
) -> None:
    if backend != "docker":
        pytest.skip("here the guest's socket lies where nothing inside comes to")
    taken = box.exec(f"cd /run/guest && rm s.sock && {instead}")
    assert taken.ok
    _use_many_lines(box)
    assert_ended(box, DIED_BY_ITSELF)


def _use_many_lines(box: Sandbox) -> None:
    """Lines that were open before are the guest's own still: more calls at once need new ones."""
    with ThreadPoolExecutor(8) as threads:
        for answer in [threads.submit(box.exec, "sleep 1") for _ in range(8)]:
            answer.exception(60)


def test_without_its_shell_and_its_accounts_commands_are_scored(backend: str, box: Sandbox) -> None:
    if backend != "docker":
        pytest.skip("nothing of the machine's own can be removed here")
    assert box.exec("rm -f /etc/passwd /etc/group; chmod 000 /").ok
    assert box.exec("id -u").stdout == "0\n"
    box.exec("rm -f /bin/sh /bin/dash /bin/bash")
    assert verdict(box.exec("true")) == ("start_failed", "start_failed", "agent", False, 127)
    error = refused(box.shell)
    assert (error.code, error.fault, error.mask) == ("conflict", "agent", False)
