"""`kernel` as a person has it on a terminal, and as a program has it on a pipe."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest

from sandboxd.cli.inside.completing import matches_of
from sandboxd.cli.inside.repl import cells_of, is_complete
from sandboxd_client import Sandbox, Sandboxd
from tests.support.daemon import ROOT
from tests.support.screen import Person, at_terminal

# What IPython completes with by default takes seconds the first time.
_PLAIN_COMPLETION = "%config IPCompleter.use_jedi = False"
PROGRAM = (sys.executable, "-m", "sandboxd")


@dataclass(frozen=True, slots=True)
class Desk:
    """A sandbox, and how to start the program that speaks to it."""

    sandbox: Sandbox
    env: dict[str, str]

    def kernel(self, *more: str) -> AbstractContextManager[Person]:
        """Somebody at `sandboxd kernel`."""
        return at_terminal(*PROGRAM, "kernel", self.sandbox.id, *more, env=self.env)

    def pipes(self, cells: str, *more: str) -> subprocess.CompletedProcess[str]:
        """The program with that for its input, to its end."""
        return subprocess.run(
            [*PROGRAM, "kernel", self.sandbox.id, *more],
            input=cells,
            capture_output=True,
            env=os.environ | self.env,
            text=True,
            timeout=15,
            check=False,
        )


@pytest.fixture
def desk(url: str) -> Iterator[Desk]:
    """A sandbox of its own for each test."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "client")])
    with Sandboxd(url) as client, client.lease("python") as sandbox:
        yield Desk(sandbox, {"PYTHONPATH": path, "SANDBOXD_API_URL": url})


def test_cells_are_typed_and_show_what_they_show(desk: Desk) -> None:
    with desk.kernel() as person:
        person.sees("In [1]:")
        person.type("x = 6\r")
        person.sees("In [2]:")
        person.type("for i in range(2):\r")
        person.sees("...:")
        person.type("    print('n', i)\r\r")
        person.sees("\nn 0\nn 1\n")
        person.sees("In [3]:")
        person.type("x * 7\r")
        person.sees("Out[3]: 42")
        person.type("1/0\r")
        person.sees("ZeroDivisionError: division by zero")
        person.type("!echo from the $((1+1))nd shell\r")
        person.sees("\nfrom the 2nd shell\n")
        person.sees("In [6]:")
        person.type("\x04")
        assert person.waits() == 0
        assert person.restored
    assert desk.sandbox.kernels() == []


def test_ctrl_c_interrupts_the_cell_and_drops_what_was_typed(desk: Desk) -> None:
    with desk.kernel() as person:
        person.sees("In [1]:")
        person.type("import time; kept = 5; print('on it'); time.sleep(60)\r")
        person.sees("\non it")
        person.type("\x03")
        person.sees("KeyboardInterrupt")
        person.sees("In [2]:")
        person.type("def half(")
        person.sees("def half(")
        person.type("\x03")
        person.sees(lambda text: text.count("In [2]:") == 2)
        person.type("kept + 1\r")
        person.sees("Out[2]: 6")
        person.sees("In [3]:")
        person.type("\x04")
        assert person.waits() == 0


def test_a_kernel_that_dies_is_started_anew_and_it_is_said(desk: Desk) -> None:
    with desk.kernel() as person:
        person.sees("In [1]:")
        person.type("import os; os._exit(3)\r")
        person.sees("the cell ended with died")
        person.sees("started anew: its variables are gone")
        person.sees(lambda text: text.count("In [1]:") == 2)
        person.type("'well'\r")
        person.sees("Out[1]: 'well'")
        person.sees("In [2]:")
        person.type("\x04")
        assert person.waits() == 0


def test_a_cell_may_ask_and_tab_completes(desk: Desk) -> None:
    kernel = desk.sandbox.kernel()
    kernel.execute(_PLAIN_COMPLETION, store_history=False)
    with desk.kernel("--attach", kernel.kernel_id) as person:
        person.sees("In [1]:")
        person.type("name = input('who? ')\r")
        person.sees("\nwho?")
        person.type("Ada\r")
        person.sees("In [2]:")
        person.type("nam\t")
        person.sees("In [2]: name")
        person.type("\r")
        person.sees("Out[2]: 'Ada'")
        person.sees("In [3]:")
        person.type("\x04")
        assert person.waits() == 0


def test_help_is_shown_where_a_pager_would_show_it(desk: Desk) -> None:
    with desk.kernel() as person:
        person.sees("In [1]:")
        person.type("len?\r")
        person.sees("Return the number of items in a container.")
        person.sees("In [2]:")


def test_tab_is_nothing_while_a_cell_asks_and_an_indent_where_nothing_stands(desk: Desk) -> None:
    with desk.kernel() as person:
        person.sees("In [1]:")
        person.type("name = input('who? ')\r")
        person.sees("\nwho?")
        person.type("A\tda\r")
        person.sees("In [2]:")
        person.type("if name:\r")
        person.sees("...:")
        person.type("\tprint('it is', name)\r\r")
        person.sees("\nit is Ada")


def test_a_prompt_knows_await_and_the_words_that_leave_it(desk: Desk) -> None:
    with desk.kernel() as person:
        person.sees("In [1]:")
        person.type("async def each():\r    yield 7\r\r")
        person.sees("In [2]:")
        person.type("async for i in each():\r    print('got', i)\r\r")
        person.sees("\ngot 7")
        person.sees("In [3]:")
        person.type("exit\r")
        assert person.waits() == 0
    assert desk.sandbox.kernels() == []


def test_errors_leave_the_prompt_there_but_for_the_end_of_the_sandbox(desk: Desk) -> None:
    with desk.kernel() as person:
        person.sees("In [1]:")
        (kernel,) = desk.sandbox.kernels()
        held = desk.sandbox.get_kernel(kernel.kernel_id)
        assert held.execute("import os\nos._exit(0)").outcome == "died"
        person.type("1\r")
        person.sees("the kernel died")
        person.sees("started anew: its variables are gone")
        person.type("'well'\r")
        person.sees("Out[1]: 'well'")
        held.shutdown()
        person.type("2\r")
        person.sees("there is no kernel")
        person.sees(lambda text: text.count("In [2]:") == 2)
        desk.sandbox.release()
        person.type("3\r")
        assert person.waits() == 125


def test_cells_come_from_a_pipe_until_one_fails(desk: Desk) -> None:
    cells = "x = 1\n\nprint('a')\nx + 1\n# %% the next one\n'v'\n# %%\n1/0\n# %%\nprint('never')\n"
    done = desk.pipes(cells)
    assert done.returncode == 1
    assert done.stdout.startswith("a\n2\n'v'\n")
    assert "ZeroDivisionError: division by zero" in done.stdout
    assert "\x1b" not in done.stdout
    assert "never" not in done.stdout
    assert desk.sandbox.kernels() == []


def test_a_kernel_that_is_attached_to_lives_on(desk: Desk) -> None:
    kernel = desk.sandbox.kernel()
    assert desk.pipes("x = 8\n", "--attach", kernel.kernel_id).returncode == 0
    assert kernel.execute("x").text == "8"
    again = desk.pipes("print(x)\n", "--attach", kernel.kernel_id)
    assert (again.returncode, again.stdout) == (0, "8\n")


def test_what_cannot_be_told_leaves_with_125(desk: Desk) -> None:
    done = desk.pipes("1\n", "--spec", "cobol")
    assert done.returncode == 125
    assert done.stderr.startswith("sandboxd: ")
    assert "'cobol'" in done.stderr


@pytest.mark.parametrize(
    ("code", "complete"),
    [
        ("1 + 1", True),
        ("", True),
        ("for x in y:", False),
        ("for x in y:\n    pass", False),
        ("for x in y:\n    pass\n", True),
        ("f(1,", False),
        ("'''open", False),
        ("@cache", False),
        ("async with x as y:", False),
        ("await x", True),
        ("!ls -l", True),
        ("1 +", True),  # the kernel says what is wrong with it
        ("%%bash", False),
        ("%%bash\necho 1\n", True),
    ],
)
def test_python_says_when_a_cell_is_whole(code: str, *, complete: bool) -> None:
    assert is_complete(code, python=True) is complete


def test_cells_of_other_languages_end_with_an_empty_line() -> None:
    assert not is_complete("echo 1", python=False)
    assert is_complete("echo 1\n", python=False)


def test_a_border_begins_a_cell_and_empty_ones_are_none() -> None:
    lines = ["# %% first\n", "a\n", "\n", "b\n", "# %%\n", "\n", "# %%\n", "c"]
    assert list(cells_of(lines)) == ["a\n\nb\n", "c"]
    assert list(cells_of([])) == []


def test_matches_stand_where_the_line_s_word_does(desk: Desk) -> None:
    with desk.sandbox.kernel() as kernel:
        kernel.execute(f"{_PLAIN_COMPLETION}\nshouting = 'x'")
        line = "y = shouting.upp"
        assert matches_of(kernel, [], line, begin=4, end=len(line)) == ["shouting.upper"]
        assert matches_of(kernel, ["if 1:"], "  shou", begin=2, end=6) == ["shouting"]
