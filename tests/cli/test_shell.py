"""`shell` and `top` as a person has them: on a real terminal, over a real sandbox."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandboxd.cli.inside.escape import Escape
from sandboxd_client import Sandbox, Sandboxd
from tests.support.daemon import ROOT
from tests.support.screen import Person, at_terminal

PROGRAM = (sys.executable, "-m", "sandboxd")


@dataclass(frozen=True, slots=True)
class Desk:
    """A sandbox, and how to start the program that speaks to it."""

    sandbox: Sandbox
    env: dict[str, str]

    def shell(self, *more: str) -> AbstractContextManager[Person]:
        """Somebody at `sandboxd shell`."""
        return at_terminal(*PROGRAM, "shell", self.sandbox.id, *more, env=self.env)

    def run(self, *argv: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """The program without a terminal, to its end."""
        return subprocess.run(
            [*PROGRAM, *argv],
            input=stdin,
            capture_output=True,
            env=os.environ | self.env,
            timeout=15,
            check=False,
        )


@pytest.fixture
def desk(url: str) -> Iterator[Desk]:
    """A sandbox of its own for each test."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "client")])
    env = {"PYTHONPATH": path, "SANDBOXD_API_URL": url, "PS1": "$ "}
    with Sandboxd(url) as client, client.lease("python") as sandbox:
        yield Desk(sandbox, env)


def test_a_full_screen_editor_works_and_the_terminal_is_as_before(
    desk: Desk, tmp_path: Path
) -> None:
    with desk.shell("--", "vim", "-u", "NONE", "-n", "letter.txt") as person:
        person.sees("letter.txt")
        assert person.sees("~").count("\n~") > 15  # one for each empty line of the screen
        assert not person.restored
        person.type("iDear reader,\r\rall is well: \u20ac\x1b")
        assert person.sees("all is well: \u20ac").startswith("Dear reader,")
        person.size(12, 40)
        size = "until [ \"$(stty size </dev/pts/0)\" = '12 40' ]; do sleep 0.02; done"
        assert desk.sandbox.exec(size, timeout_s=10).ok
        person.type(":set lines? columns?\r")
        assert "columns=40" in person.sees("lines=12")
        person.type("\r:wq\r")
        assert person.waits() == 0
        assert person.restored
    assert desk.sandbox.files.read("letter.txt").decode() == "Dear reader,\n\nall is well: \u20ac\n"


def test_a_shell_has_job_control_a_size_and_the_command_s_own_status(desk: Desk) -> None:
    with desk.shell("--env", "PS1=$ ", "--", "bash", "--norc") as person:
        person.sees("$")
        person.type("stty size\r")
        person.sees("\n24 80")
        person.size(30, 100)
        person.type("sleep 0.1; stty size\r")
        person.sees("\n30 100")
        person.type("sleep 60\r")
        person.sees("sleep 60")
        person.type("\x03")
        person.type("echo it was $?\r")
        person.sees("it was 130")
        person.type("exit 7\r")
        assert person.waits() == 7
        assert person.restored


def test_who_leaves_may_come_back(desk: Desk) -> None:
    with desk.shell("--env", "PS1=$ ", "--", "bash", "--norc") as person:
        person.sees("$")
        person.type("echo hel''lo\r")
        person.sees("\nhello")
        person.type("\r~.")
        assert person.waits() == 0
        assert person.restored
        left = re.search(r"--attach (\S+)", person.text.replace("\n", ""))
        assert left is not None, person.text
    with desk.shell("--attach", left[1]) as person:
        person.sees("\nhello")
        person.type("echo a''gain; exit 3\r")
        person.sees("\nagain")
        assert person.waits() == 3


def test_one_who_is_told_to_go_hangs_up_and_leaves_the_terminal_as_it_was(desk: Desk) -> None:
    with desk.shell("--", "sh", "-c", "echo here; exec sleep 60") as person:
        person.sees("here")
        person.process.send_signal(signal.SIGTERM)
        person.waits()
        assert person.restored
    (command,) = desk.sandbox.execs()
    assert desk.sandbox.process(command.exec_id).wait(timeout_s=10).signal == "HUP"


def test_without_a_terminal_it_is_a_pipe(desk: Desk) -> None:
    done = desk.run("shell", desk.sandbox.id, stdin=b"echo out; echo err >&2; tty; exit 4\n")
    assert done.returncode == 4
    assert done.stdout == b"out\nnot a tty\n"
    assert done.stderr == b"err\n"
    data = bytes(range(256)) * 2000
    done = desk.run("shell", desk.sandbox.id, "--", "cat", stdin=data)
    assert (done.returncode, done.stdout, done.stderr) == (0, data, b"")


def test_what_cannot_be_is_a_line_and_125(desk: Desk) -> None:
    done = desk.run("shell", "sbx-nothing", "--", "true")
    assert (done.returncode, done.stdout) == (125, b"")
    assert done.stderr.startswith(b"sandboxd: ")
    assert desk.run("shell", "--attach", "x", desk.sandbox.id, "--", "true").returncode == 2


def test_top_shows_what_runs(desk: Desk) -> None:
    process = desk.sandbox.start(["sleep", "60"])
    (told,) = json.loads(desk.run("top", "-o", "json").stdout)["sandboxes"]
    assert told["id"] == desk.sandbox.id
    assert told["readings"]["execs_running"] == 1
    head, line = desk.run("top").stdout.decode().splitlines()
    assert head.split()[:3] == ["ID", "POOL", "STATE"]
    assert line.split()[:3] == [desk.sandbox.id, "python", "leased"]
    with at_terminal(*PROGRAM, "top", "--every", "0.1", env=desk.env, cols=120) as person:
        person.sees("1 sandboxes")
        if told["readings"]["cpu_s"] is not None:  # counted by control groups, where there are any
            person.sees(lambda text: bool(re.search(r"leased .* \d+% ", text)))
        process.kill()
        person.sees(lambda text: bool(re.search(r" 0 +-$", text, re.MULTILINE)))
        person.process.send_signal(signal.SIGINT)
        assert person.waits() == 0


@pytest.mark.parametrize(
    ("typed", "passed", "left"),
    [
        (["ls\r"], "ls\r", False),
        (["~."], "", True),
        (["ls\r~.rest"], "ls\r", True),
        (["ls\r", "~", "."], "ls\r", True),
        (["a~."], "a~.", False),
        (["~~."], "~.", False),
        (["\r~x"], "\r~x", False),
        (["\n~", "~."], "\n~.", False),
        (["~a\r~."], "~a\r", True),
    ],
)
def test_the_way_out_is_enter_tilde_dot(typed: list[str], passed: str, left: bool) -> None:
    escape = Escape()
    got, gone = b"", False
    for keys in typed:
        more, gone = escape.feed(keys.encode())
        got += more
    assert (got.decode(), gone) == (passed, left)
