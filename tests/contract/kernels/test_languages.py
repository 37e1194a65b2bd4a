"""Kernels of another language than Python: `bash_kernel`, found by its kernelspec."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.speaker import Speaker, eventually
from tests.support.cells import Kernel, add_bash, check_outputs, open_kernel

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def with_bash(roomy: Speaker) -> Speaker:
    add_bash(roomy)
    return roomy


@pytest.fixture
def bash(with_bash: Speaker) -> Iterator[Kernel]:
    made = open_kernel(with_bash, "bash")
    yield made
    with_bash.http.delete(with_bash.path + made.path)


def test_cells_of_another_language_run_and_keep_their_state(bash: Kernel) -> None:
    assert bash.ok("x=41; cd /tmp") == ""
    cell = bash.run("echo $((x + 1)) in $PWD")
    assert (cell["text"], cell["execution_count"]) == ("42 in /tmp\n", 2)
    check_outputs(cell["outputs"])


def test_a_cell_of_another_language_that_fails_is_an_error(bash: Kernel) -> None:
    cell = bash.run("ls /nowhere")
    assert (cell["outcome"], cell["error"]["evalue"]) == ("error", "2")
    assert "No such file" in cell["text"]
    assert bash.ok("echo on") == "on\n"


def test_a_cell_of_another_language_is_interrupted(bash: Kernel) -> None:
    bash.ok("x=1")
    cell_id = bash.start("sleep 2026")
    eventually(lambda: bool(bash.sandbox.processes("sleep 2026")), within_s=10, what="it sleeps")
    bash.call("interrupt")
    cell = bash.ended(cell_id)
    assert (cell["outcome"], cell["kernel_restarted"]) == ("interrupted", False)
    assert bash.ok("echo $x") == "1\n"


def test_kernels_of_two_languages_live_side_by_side(bash: Kernel, kernel: Kernel) -> None:
    bash.ok("echo from bash > /tmp/shared")
    assert kernel.ok("open('/tmp/shared').read()") == "'from bash\\n'"
    listed = {
        each["kernel_id"]: each["spec"] for each in bash.sandbox.get("/kernels").json()["kernels"]
    }
    assert listed[bash.kernel_id] == "bash"
    assert listed[kernel.kernel_id] == "python3"
    assert bash.call("restart").status_code == 200
    assert bash.ok("echo $x") == "\n"


def test_env_and_folder_reach_a_kernel_of_another_language(with_bash: Speaker) -> None:
    made = open_kernel(with_bash, "bash", env={"MINE": 'a b"c'}, cwd="/usr")
    assert made.ok('echo "$MINE" in $PWD') == 'a b"c in /usr\n'
    with_bash.http.delete(with_bash.path + made.path)
