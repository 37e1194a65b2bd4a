"""The demo's parts: its programs, its bar, its summary, and who may claim that all is right."""

from __future__ import annotations

import io

import pytest

from sandboxd.demo.problems import BATCHES, load_problems
from sandboxd.demo.progress import Progress
from sandboxd.demo.report import how_to_go_on, is_right, summary
from sandboxd.demo.rollouts import BatchResult, Rollout


class Terminal(io.StringIO):
    """Standard output as if on a terminal."""

    def isatty(self) -> bool:
        return True


def batch(*rollouts: Rollout, must_pass: bool = True) -> BatchResult:
    result = BatchResult(BATCHES[0 if must_pass else 1])
    result.rollouts += rollouts
    result.seconds = 2.0
    return result


def test_there_are_164_problems_with_ids_of_their_own() -> None:
    problems = load_problems()
    assert len({problem.task_id for problem in problems}) == 164


def test_every_program_is_python_and_ends_by_judging_its_function() -> None:
    for problem in load_problems():
        for program in (each.program(problem) for each in BATCHES):
            compile(program, problem.task_id, "exec")
            assert program.endswith(f"check({problem.entry_point})\n")


def test_an_empty_program_does_not_hold_the_solution() -> None:
    problem = load_problems()[0]
    reference, empty = BATCHES
    assert problem.canonical_solution in reference.program(problem)
    assert problem.canonical_solution not in empty.program(problem)


def test_the_bar_is_one_line_on_a_terminal() -> None:
    out = Terminal()
    progress = Progress("reference", total=4, out=out)
    for done in range(5):
        progress.show(done)
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().count("\r") == 5
    assert "4/4" in out.getvalue().splitlines()[-1]


def test_elsewhere_the_bar_is_a_line_every_tenth() -> None:
    out = io.StringIO()
    progress = Progress("reference", total=164, out=out)
    for done in range(165):
        progress.show(done)
    lines = out.getvalue().splitlines()
    assert len(lines) == 11
    assert "164/164" in lines[-1]


def test_the_summary_counts_passes_and_faults_apart_and_names_what_is_wrong() -> None:
    good = Rollout(task_id="a", right=True, passed=True, lease_s=0.002, program_s=0.05)
    lost = Rollout(task_id="b", right=False, fault="sandbox_lost: gone")
    failed = Rollout(task_id="c", right=False, said="AssertionError", lease_s=0.004, program_s=0.1)
    lines = list(summary([batch(good, lost, failed)], left=[]))
    assert lines[0] == "reference solutions: 1 of 3 pass (must be 3), faults of ours: 1"
    assert "lease p50 4 ms, p99 4 ms" in lines[1]
    assert "1.5 rollouts/s" in lines[1]
    assert lines[2:4] == ["  WRONG b: sandbox_lost: gone", "  WRONG c: AssertionError"]
    assert lines[-1] == "sandboxes left over: 0"


@pytest.mark.parametrize(
    ("right", "left", "expected"), [(True, [], True), (False, [], False), (True, ["sbx-1"], False)]
)
def test_all_is_right_only_with_every_verdict_and_nothing_left(
    right: bool, left: list[str], expected: bool
) -> None:
    results = [batch(Rollout(task_id="a", right=True)), batch(Rollout(task_id="a", right=right))]
    assert is_right(results, left=left) is expected


def test_four_lines_show_how_to_go_on() -> None:
    assert len(how_to_go_on("local").splitlines()) == 1 + 4
