"""prime-sandboxes as its users have it, over a daemon of ours: the dialect of ConnectRPC."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.daemon import RunningDaemon
from tests.support.foreign.running import told_by

# Making an environment of foreign packages takes a minute or two, once.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def told(daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of one run of everything that the client can ask of a sandbox."""
    home = tmp_path_factory.mktemp("home")
    found: dict[str, Any] = told_by("prime_vm", client="verifiers", daemon=daemon.url, home=home)
    return found


def test_a_command_has_its_output_status_directory_and_variables(told: dict[str, Any]) -> None:
    assert told["command"] == ["plain secret own\n/tmp\n", "err\n", 3]
    assert told["heredoc"] == ['it\'s "quoted"\n', "", 0]
    assert told["signal"] == 128 + 11


def test_output_of_any_size_arrives_whole(told: dict[str, Any]) -> None:
    assert told["long"] == 2_000_000


def test_a_command_past_its_deadline_is_told_so_and_its_tree_is_dead(told: dict[str, Any]) -> None:
    assert (told["timeout"], told["left"]) == ("CommandTimeoutError", 0)


def test_a_directory_that_is_not_there_is_an_error_that_names_it(told: dict[str, Any]) -> None:
    kind, text = told["bad_cwd"]
    assert (kind, "/not/there" in text) == ("APIError", True)


def test_files_go_in_and_out_byte_for_byte(told: dict[str, Any]) -> None:
    assert told["files"] == [True, True, True]
    assert told["empty"] == ""
    assert told["window"] == ["789", 11, 7, True]
    assert told["no_file"] == "SandboxFileNotFoundError"


def test_background_jobs_are_told_running_done_and_lost(told: dict[str, Any]) -> None:
    assert told["job"] == [False, "hi\n", 4, 7]
    assert "ended without a status" in told["lost_job"]


def test_a_live_process_is_fed_and_signalled(told: dict[str, Any]) -> None:
    assert told["process"] == ["got a\ngot b\n", True]
    assert told["short"] == ["short\n", 9]


def test_the_start_command_runs_and_its_output_is_the_log(told: dict[str, Any]) -> None:
    assert told["logs"] == "began\n"


def test_a_deleted_sandbox_is_told_by_the_clients_own_error(told: dict[str, Any]) -> None:
    assert told["after"] == "SandboxNotRunningError"
