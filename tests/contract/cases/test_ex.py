"""Commands: statuses, starts, and what outlives them, in every form of the call."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.cases.forms import (
    Form,
    by_program,
    call,
    in_every_form,
    in_shell,
    new_shell,
    stream,
)
from tests.contract.cases.times import scaled
from tests.contract.speaker import Speaker, problem

many = pytest.mark.parametrize(
    ("runs", "at_once"),
    [pytest.param(24, 8, id="few"), pytest.param(500, 50, id="all", marks=pytest.mark.slow)],
)


@pytest.mark.requirement("EX-01")
@pytest.mark.timeout(300)
@many
@in_every_form
def test_ex_01_every_status_is_there_with_the_end_of_the_output(
    sandbox: Speaker, form: Form, runs: int, at_once: int
) -> None:
    with ThreadPoolExecutor(at_once) as pool:
        seen = pool.map(lambda _: form(sandbox, ["sh", "-c", "exit 42"]), range(runs))
        told = [(one.outcome, one.exit_code, one.status) for one in seen]
    assert told == [("exited", 42, 42)] * runs


@pytest.mark.requirement("EX-01")
def test_ex_01_so_it_is_in_shells_and_in_the_program(sandbox: Speaker) -> None:
    shells = [new_shell(sandbox) for _ in range(5)]

    def in_one(shell: str) -> set[int | None]:
        return {in_shell(sandbox, "sh -c 'exit 42'", shell=shell).exit_code for _ in range(10)}

    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(in_one, shells)) == [{42}] * 5
        runs = pool.map(lambda _: by_program(sandbox, ["sh", "-c", "exit 42"])[0], range(4))
        assert list(runs) == [42] * 4


@pytest.mark.requirement("EX-03")
@in_every_form
def test_ex_03_a_child_that_holds_the_output_delays_nothing_and_lives(
    sandbox: Speaker, form: Form
) -> None:
    for _ in range(20):
        began = time.monotonic()
        seen = form(sandbox, ["sh", "-c", "sleep 300 & echo done"])
        assert time.monotonic() - began < 5
        assert (seen.outcome, seen.exit_code, seen.stdout) == ("exited", 0, b"done\n")
    assert len(sandbox.processes("sleep 300")) == 20


@pytest.mark.requirement("EX-03")
def test_ex_03_nor_in_a_shell_or_the_program(sandbox: Speaker) -> None:
    shell = new_shell(sandbox)
    for _ in range(20):
        began = time.monotonic()
        seen = in_shell(sandbox, "sleep 300 & echo done", shell=shell)
        assert time.monotonic() - began < 5
        assert (seen.exit_code, seen.stdout) == (0, b"done\n")
    assert by_program(sandbox, ["sh", "-c", "sleep 300 & echo done"])[:2] == (0, b"done\n")
    assert len(sandbox.processes("sleep 300")) == 21


@pytest.mark.requirement("EX-08")
@in_every_form
@pytest.mark.parametrize(
    ("cmd", "outcome", "exit_code", "reason"),
    [
        (["no-such-cmd-xyz"], "start_failed", None, "not_found"),
        (["/etc/hostname"], "start_failed", None, "not_executable"),
        (["sh", "-c", "no-such-cmd-xyz"], "exited", 127, None),
        (["sh", "-c", "exit 127"], "exited", 127, None),
    ],
)
def test_ex_08_what_cannot_be_started_is_no_output(
    sandbox: Speaker,
    form: Form,
    cmd: list[str],
    outcome: str,
    exit_code: int | None,
    reason: str | None,
) -> None:
    seen = form(sandbox, cmd)
    assert (seen.outcome, seen.exit_code, seen.reason) == (outcome, exit_code, reason)
    assert seen.stdout == b""
    if reason is not None:
        assert cmd[0] in seen.detail
        assert seen.stderr == b""
    if cmd[-1] == "exit 127":
        assert seen.stderr == b""
    assert call(sandbox, "echo usable").stdout == b"usable\n"


@pytest.mark.requirement("EX-08")
def test_ex_08_the_program_says_on_stderr_what_did_not_start(sandbox: Speaker) -> None:
    code, out, err = by_program(sandbox, ["no-such-cmd-xyz"])
    assert (code, out) == (127, b"")
    assert b"start_failed" in err
    assert b"no-such-cmd-xyz" in err
    assert by_program(sandbox, ["/etc/hostname"])[:2] == (126, b"")
    assert by_program(sandbox, ["sh", "-c", "exit 127"]) == (127, b"", b"")


@pytest.mark.requirement("EX-13")
def test_ex_13_texts_that_do_not_end_hang_no_shell(sandbox: Speaker) -> None:
    shell = new_shell(sandbox)

    def timed(text: str) -> tuple[int | None, bytes, float]:
        began = time.monotonic()
        seen = in_shell(sandbox, text, shell=shell)
        return seen.exit_code, seen.stdout, time.monotonic() - began

    assert timed("cat > /tmp/f <<'X'\n1\n2\n3\nX")[0] == 0
    assert call(sandbox, "cat /tmp/f").stdout == b"1\n2\n3\n"
    for text in ("echo 'open", 'echo "open', "echo $(", "if true", "f() {"):
        code, out, took = timed(text)
        assert code
        assert (out, took < 5) == (b"", True)
    # An open here-document is no error to a shell: it ends with the text, and the shell warns.
    code, out, took = timed("cat <<'X'\nnever ended")
    assert (code, out, took < 5) == (0, b"never ended\n", True)
    code, out, took = timed("echo ok")
    assert (code, out, took < 2) == (0, b"ok\n", True)


@pytest.mark.requirement("EX-14")
@pytest.mark.parametrize(
    ("text", "code"), [("set -e; false", 1), ("exit 3", 3), ("set -e\n(exit 7)", 7), ("exec sh", 0)]
)
def test_ex_14_a_shell_that_ends_says_so_and_no_later_call_waits(
    sandbox: Speaker, text: str, code: int
) -> None:
    shell = new_shell(sandbox)
    told = sandbox.post(f"/shells/{shell}/run", {"text": text}).json()
    assert (told["outcome"], told["exit_code"], told["shell_ended"]) == ("exited", code, True)
    for _ in range(2):
        began = time.monotonic()
        refused = sandbox.post(f"/shells/{shell}/run", {"text": "echo a"})
        assert problem(refused, 409, "conflict")["details"]["shell_ended"] is True
        assert time.monotonic() - began < 2
    began = time.monotonic()
    assert in_shell(sandbox, "echo b").stdout == b"b\n"
    assert time.monotonic() - began < 2


@pytest.mark.requirement("EX-14")
def test_ex_14_a_shell_that_is_killed_or_closes_what_it_is_heard_by_ends_too(
    sandbox: Speaker,
) -> None:
    for text in ("kill -9 $$", "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- 10>&-; eval 'exec 9>&-'"):
        shell = new_shell(sandbox)
        began = time.monotonic()
        sandbox.post(f"/shells/{shell}/run", {"text": text})
        answer = sandbox.post(f"/shells/{shell}/run", {"text": "echo a"})
        assert time.monotonic() - began < 4
        assert answer.status_code == 409 or answer.json()["stdout"] == "a\n"


@pytest.mark.requirement("EX-18")
@in_every_form
def test_ex_18_a_prompt_meets_the_end_of_its_input(sandbox: Speaker, form: Form) -> None:
    seen = form(sandbox, ["python3", "-c", "input('x')"])
    assert (seen.outcome, seen.exit_code) == ("exited", 1)
    assert b"EOFError" in seen.stderr


@pytest.mark.requirement("EX-18")
@pytest.mark.timeout(40)
@pytest.mark.parametrize("form", [call, stream], ids=["call", "stream"])
def test_ex_18_a_loop_on_it_meets_its_deadline(sandbox: Speaker, form: Form) -> None:
    loop = "while ! read a; do echo again; done"
    began = time.monotonic()
    seen = form(sandbox, ["sh", "-c", loop], timeout_s=5, exec_id="loop")
    took = time.monotonic() - began
    assert (seen.outcome, seen.exit_code, seen.status) == ("timeout", None, 124)
    told = sandbox.get("/execs/loop").json()
    assert 2 < told["duration_s"] < 8
    assert len(told["stdout"]) < (1 << 20) + 200
    # A stream's reader gets every line of the flood, so it is done when it has read them.
    assert took < (8 if form is call else 25)
    assert sandbox.processes("again") == []


@pytest.mark.requirement("EX-18")
def test_ex_18_so_it_does_in_a_shell(sandbox: Speaker) -> None:
    shell = new_shell(sandbox)
    assert b"EOFError" in in_shell(sandbox, "python3 -c \"input('x')\"", shell=shell).stderr
    seen = in_shell(sandbox, "while ! read a; do echo again; done", shell=shell, timeout_s=1)
    assert (seen.outcome, seen.exit_code) == ("timeout", None)
    assert len(seen.stdout) < (1 << 20) + 200


@pytest.mark.requirement("EX-19")
@in_every_form
def test_ex_19_every_exit_is_its_number_and_every_signal_its_name(
    sandbox: Speaker, form: Form
) -> None:
    for given, told in ((0, 0), (1, 1), (2, 2), (125, 125), (126, 126), (128, 128), (255, 255)):
        seen = form(sandbox, ["bash", "-c", f"exit {given}"])
        assert (seen.outcome, seen.exit_code, seen.signal) == ("exited", told, None)
    seen = form(sandbox, ["bash", "-c", "exit 256"])
    assert (seen.outcome, seen.exit_code) == ("exited", 0)
    assert seen.exit_code is not False
    for number, name in ((9, "KILL"), (15, "TERM"), (11, "SEGV"), (13, "PIPE")):
        seen = form(sandbox, ["sh", "-c", f"kill -{number} $$"])
        assert (seen.outcome, seen.exit_code, seen.signal) == ("signaled", None, name)
        assert seen.status == 128 + number


@pytest.mark.requirement("EX-19")
@pytest.mark.parametrize(("script", "code"), [("exit 255", 255), ("kill -11 $$", 139)])
def test_ex_19_the_program_exits_with_the_shells_number(
    sandbox: Speaker, script: str, code: int
) -> None:
    assert by_program(sandbox, ["sh", "-c", script])[0] == code


@pytest.mark.requirement("EX-20")
@pytest.mark.timeout(100)
@scaled(1 / 20)
@pytest.mark.parametrize("begin", ["call", "shell"])
def test_ex_20_a_server_in_the_background_outlives_its_command(
    sandbox: Speaker, scale: float, begin: str
) -> None:
    serve = "nohup python3 -m http.server 8123 >/dev/null 2>&1 &"
    begun: Callable[[], object] = {
        "call": lambda: call(sandbox, serve),
        "shell": lambda: in_shell(sandbox, serve),
    }[begin]
    begun()
    fetch = (
        "import sys, time, urllib.request as r\n"
        "time.sleep(float(sys.argv[1]))\n"
        "end = time.monotonic() + 10\n"
        "while True:\n"
        "  try: print(r.urlopen('http://127.0.0.1:8123').status); break\n"
        "  except OSError:\n"
        "    if time.monotonic() > end: raise\n"
        "    time.sleep(0.05)\n"
    )
    assert call(sandbox, ["python3", "-c", fetch, str(scale)]).stdout == b"200\n"
    # The second has no patience: the server was there, and must be there still.
    again = (
        f"import time, urllib.request as r; time.sleep({59 * scale}); "
        "print(r.urlopen('http://127.0.0.1:8123').status)"
    )
    at = f"{sandbox.path}/execs/{sandbox.start(['python3', '-c', again])}"
    told = sandbox.http.get(at, params={"wait_s": 70 * scale + 10}, timeout=100).json()
    assert told["stdout"] == "200\n"
