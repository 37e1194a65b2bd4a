"""`notebook run` as a person has it: a file in, a file out, a line for each cell in between."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest

from sandboxd.cli.faults import CliError
from sandboxd.cli.inside.notebook_file import read_notebook, target_beside
from sandboxd_client import CellOutput, Sandbox, Sandboxd
from tests.support.daemon import ROOT

OLD = {"output_type": "stream", "name": "stdout", "text": "from another run"}


@dataclass(frozen=True, slots=True)
class Desk:
    """A folder for notebooks, and how to start the program."""

    folder: Path
    url: str

    def writes(self, *codes: str | tuple[str, list[str]], spec: str | None = None) -> Path:
        """A notebook with a word of explanation and these cells, with their tags if any."""
        cells: list[dict[str, Any]] = [
            {"cell_type": "markdown", "metadata": {}, "source": ["# Hello\n", "there"]}
        ]
        for given in codes:
            code, tags = given if isinstance(given, tuple) else (given, [])
            cells.append(
                {
                    "cell_type": "code",
                    "metadata": {"tags": tags},
                    "execution_count": 99,
                    "source": code.splitlines(keepends=True),
                    "outputs": [OLD],
                }
            )
        metadata = {"kernelspec": {"name": spec, "display_name": spec}} if spec else {}
        told = {"nbformat": 4, "nbformat_minor": 4, "metadata": metadata, "cells": cells}
        path = self.folder / "work.ipynb"
        path.write_text(json.dumps(told))
        return path

    def popen(self, *argv: str | Path, **env: str) -> subprocess.Popen[str]:
        """`sandboxd notebook run …`."""
        paths = os.pathsep.join([str(ROOT), str(ROOT / "client")])
        return subprocess.Popen(
            [sys.executable, "-m", "sandboxd", "notebook", "run", *map(str, argv)],
            env=os.environ | {"PYTHONPATH": paths, "SANDBOXD_API_URL": self.url} | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def runs(self, *argv: str | Path, **env: str) -> tuple[int, str, str]:
        """The same to its end: exit status, output, error output."""
        with self.popen(*argv, **env) as process:
            try:
                out, err = process.communicate(timeout=18)
            finally:
                process.kill()
        return process.returncode, out, err


@pytest.fixture
def desk(url: str, tmp_path: Path) -> Iterator[Desk]:
    """An empty desk; no sandbox is left when the test is over."""
    yield Desk(tmp_path, url)
    with Sandboxd(url) as client:
        assert client.sandboxes() == []


def read(path: Path) -> list[Any]:
    """The code cells of a notebook that Jupyter finds well."""
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    return [cell for cell in book.cells if cell.cell_type == "code"]


def test_a_notebook_runs_and_is_written_with_what_it_showed(desk: Desk) -> None:
    rich = "from IPython.display import HTML, display\ndisplay(HTML('<b>1</b>'))\nprint('é')\nx"
    path = desk.writes("x = 20\n", "", rich, ("print('not me')", ["skip-execution"]))
    code, out, err = desk.runs(path)
    written = desk.folder / "work.out.ipynb"
    assert (code, out) == (0, ""), err
    first, second, last = err.splitlines()
    assert first.startswith("[1/2] x = 20 ")
    assert second.startswith("[2/2] from IPython.display import HTML, display ")
    assert last == f"sandboxd: written: {written}"
    one, empty, three, skipped = read(written)
    assert (one.execution_count, one.outputs) == (1, [])
    assert (empty.execution_count, empty.outputs, skipped.outputs) == (None, [], [])
    assert [output.output_type for output in three.outputs] == [
        "display_data",
        "stream",
        "execute_result",
    ]
    assert three.outputs[0].data["text/html"] == "<b>1</b>"
    assert three.outputs[1].text == "é\n"
    assert three.outputs[2].data["text/plain"] == "20"
    assert json.loads(path.read_text())["cells"][1]["outputs"] == [OLD]  # left as it was


def test_the_first_cell_that_raises_ends_it_and_is_written(desk: Desk) -> None:
    path = desk.writes("print('before')", "1 / 0", "print('after')")
    code, _, err = desk.runs(path, "--output", desk.folder / "failed.ipynb")
    assert code == 1
    assert "sandboxd: cell 2 of 3: ZeroDivisionError: division by zero" in err
    before, failed, after = read(desk.folder / "failed.ipynb")
    assert before.outputs[0].text == "before\n"
    assert (failed.outputs[0].output_type, failed.outputs[0].ename) == (
        "error",
        "ZeroDivisionError",
    )
    assert (after.execution_count, after.outputs) == (None, [])


def test_errors_may_be_allowed_for_all_cells_or_for_one(desk: Desk) -> None:
    path = desk.writes(("1 / 0", ["raises-exception"]), "print('on')")
    assert desk.runs(path)[0] == 0
    path = desk.writes("1 / 0", "print('on')")
    code, out, _ = desk.runs(path, "--allow-errors", "--output", "-")
    assert code == 0
    assert json.loads(out)["cells"][2]["outputs"][0]["text"] == ["on\n"]


def test_a_cell_has_its_own_deadline_and_a_kernel_may_die(desk: Desk) -> None:
    code, _, err = desk.runs(desk.writes("while True: pass"), "--timeout", "0.3")
    assert code == 1
    assert "(timeout)" in err
    path = desk.writes("import os\nos._exit(1)", "1")
    code, _, err = desk.runs(path, "--allow-errors")
    assert code == 1
    assert "cell 1 of 2: it ended with died, fault agent" in err


@contextmanager
def begun(desk: Desk, path: Path) -> Iterator[tuple[subprocess.Popen[str], Sandbox]]:
    """The program and its sandbox, once a cell that prints `begun` was heard to."""
    with desk.popen(path) as process, Sandboxd(desk.url) as client:
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("[1/2]")
            (info,) = client.sandboxes()
            sandbox = client.sandbox(info.id)
            assert sandbox.exec(UNTIL_BEGUN, timeout_s=10).exit_code == 0
            (kernel,) = sandbox.kernels()
            cell_id = sandbox.files.read("begun").decode().removeprefix("cell.")
            heard = sandbox.get_kernel(kernel.kernel_id).attach(cell_id)
            assert any(isinstance(event, CellOutput) for event in heard)
            heard.close()
            yield process, sandbox
        finally:
            process.kill()


UNTIL_BEGUN = ["sh", "-c", "until [ -s begun ]; do sleep 0.01; done"]
LONG = """
import time
print('begun', flush=True)
display('shown')
print(get_ipython().kernel.get_parent()['header']['msg_id'], end='', file=open('begun', 'w'))
time.sleep(60)
"""


@contextmanager
def not_ignored(number: signal.Signals) -> Iterator[None]:
    """A program that is started inside hears it, also where tests run under `nohup`."""
    before = signal.getsignal(number)
    if before is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_that_is_told_to_go_leaves_a_file_with_what_was_shown_by_then(
    desk: Desk, number: signal.Signals
) -> None:
    with not_ignored(number), begun(desk, desk.writes("print('whole')", LONG)) as (process, _):
        process.send_signal(number)
        _, err = process.communicate(timeout=15)
    assert process.returncode == 130
    assert "Traceback" not in err
    whole, by_then = shown(desk)
    assert whole == ["whole\n"]
    assert by_then == ["begun\n", "'shown'"][: len(by_then)]


def test_one_whose_sandbox_is_lost_leaves_a_file_with_what_was_shown_by_then(desk: Desk) -> None:
    with begun(desk, desk.writes("print('whole')", LONG)) as (process, sandbox):
        sandbox.release()
        _, err = process.communicate(timeout=15)
    assert process.returncode == 125
    assert "(not ended)" in err
    assert "the lease ended: released" in err
    assert shown(desk) == [["whole\n"], ["begun\n", "'shown'"]]


def shown(desk: Desk) -> list[list[str]]:
    """Of each cell of what was written, what it printed and displayed."""
    return [
        [output.get("text") or output.data["text/plain"] for output in cell.outputs]
        for cell in read(desk.folder / "work.out.ipynb")
    ]


def test_what_was_not_kept_is_missing_with_a_word(desk: Desk) -> None:
    code, _, err = desk.runs(desk.writes("print('x' * 2_000_000)"))
    assert code == 0
    assert "(truncated)" in err
    (cell,) = read(desk.folder / "work.out.ipynb")
    assert cell.outputs[-1].name == "stderr"
    assert cell.outputs[-1].text == "[not all that this cell showed was kept]\n"


def test_a_file_that_is_there_keeps_its_place_and_who_may_read_it(desk: Desk) -> None:
    path = desk.writes("1")
    target, link = desk.folder / "kept.ipynb", desk.folder / "link.ipynb"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target.name)
    assert desk.runs(path, "--output", link)[0] == 0
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o600
    assert read(target)[0].outputs[0].data["text/plain"] == "1"


def test_what_is_no_file_is_written_into_and_not_replaced(desk: Desk) -> None:
    path, pipe = desk.writes("1"), desk.folder / "pipe"
    os.mkfifo(pipe)
    with desk.popen(path, "--output", pipe) as process:
        try:
            told = json.loads(pipe.read_text())
            assert process.wait(15) == 0
        finally:
            process.kill()
    assert told["cells"][1]["outputs"][0]["data"]["text/plain"] == ["1"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    # Beside what is no file there is no place for another one.
    assert target_beside("/dev/stdin") == "-"


def test_standard_output_has_utf_8_whatever_the_terminal_speaks(desk: Desk) -> None:
    code, out, _ = desk.runs(desk.writes("print('μ')"), "--output", "-", PYTHONIOENCODING="latin-1")
    assert code == 0
    assert json.loads(out)["cells"][1]["outputs"][0]["text"] == ["μ\n"]


def test_what_it_was_written_for_is_asked_for_by_name(desk: Desk) -> None:
    path = desk.writes("1", spec="cobol")
    code, _, err = desk.runs(path)
    assert code == 125
    assert "'cobol'" in err
    assert "`--spec NAME` takes another" in err
    assert not (desk.folder / "work.out.ipynb").exists()
    assert desk.runs(path, "--spec", "python3")[0] == 0


def test_nowhere_to_write_is_said_before_anything_runs(desk: Desk) -> None:
    path = desk.writes("1")
    code, _, err = desk.runs(path, "--output", desk.folder / "none" / "out.ipynb")
    assert code == 2
    assert err.startswith("sandboxd: there is no folder to write ")
    code, _, err = desk.runs(path, "--output", desk.folder)
    assert code == 2
    assert err.startswith(f"sandboxd: {desk.folder} is a folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_what_may_not_be_written_is_said_before_anything_runs(desk: Desk) -> None:
    path, target = desk.writes("1"), desk.folder / "theirs.ipynb"
    target.touch(0o400)
    code, _, err = desk.runs(path, "--output", target)
    assert (code, err) == (2, f"sandboxd: {target} cannot be written: permission denied\n")


def test_no_daemon_is_a_line_and_no_file(tmp_path: Path) -> None:
    nowhere = Desk(tmp_path, "http://127.0.0.1:9")
    code, out, err = nowhere.runs(nowhere.writes("1"))
    assert (code, out) == (125, "")
    assert err.startswith("sandboxd: no daemon at http://127.0.0.1:9")
    assert not (tmp_path / "work.out.ipynb").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[]", "no nbformat"),
        ('{"nbformat": 3, "worksheets": []}', "nbformat 3"),
        ('{"nbformat": 4}', "no cells"),
        ('{"nbformat": 4, "cells": [{"cell_type": "code"}]}', "cell 1: its source"),
        ('{"nbformat": 4, "cells": [{"source": ""}]}', "cell 1: it has no cell_type"),
        ('{"nbformat": 4, "cells": [{"cell_type": "code", "source": "\\ud800"}]}', "no text"),
        ('{"nbformat": 4, "metadata": [], "cells": []}', "metadata"),
        ('{"nbformat": 4, "metadata": {"kernelspec": {"name": [1]}}, "cells": []}', "kernelspec"),
    ],
)
def test_what_is_no_notebook_is_refused_with_why(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "no.ipynb"
    path.write_text(text)
    with pytest.raises(CliError, match=why) as caught:
        read_notebook(str(path))
    assert caught.value.code == 2


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="No such file") as caught:
        read_notebook(str(tmp_path / "none.ipynb"))
    assert caught.value.code == 2


def test_what_says_nothing_says_the_usual(tmp_path: Path) -> None:
    cell = {"cell_type": "code", "source": "1", "metadata": {"tags": None}}
    told = {"nbformat": 4, "metadata": {"kernelspec": None}, "cells": [cell]}
    path = tmp_path / "bare.ipynb"
    path.write_text(json.dumps(told))
    book = read_notebook(str(path))
    assert book.spec is None
    assert [each.code for each in book.to_run()] == ["1"]
