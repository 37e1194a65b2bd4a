"""The synchronous twin: generated, current, and whole against a real daemon."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import sandboxd_client
from sandboxd_client import Ended, FileNotFound, Sandbox, Sandboxd, Stdout
from sandboxd_client._runtime import aio, sio
from tests.support.daemon import ROOT


@pytest.fixture
def sandbox(sync_client: Sandboxd) -> Sandbox:
    """A sandbox that the test may leave as it likes: the daemon is ephemeral."""
    return sync_client.lease("python", timeout_s=120)


def test_the_generated_files_are_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "unasync.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("noun", ["Sandboxd", "Sandbox", "Process", "Shell", "Files"])
def test_both_sides_have_the_same_names(noun: str) -> None:
    there, here = getattr(sandboxd_client, f"Async{noun}"), getattr(sandboxd_client, noun)

    def names(cls: type) -> set[str]:
        return {n for n, _ in inspect.getmembers(cls) if not n.startswith("_")} - {
            "aclose",
            "close",
        }

    assert names(there) == names(here)
    assert not any(inspect.iscoroutinefunction(m) for _, m in inspect.getmembers(here))


def test_both_runtimes_offer_what_the_generated_side_uses() -> None:
    used = {"sleep", "now", "shielded", "guard", "home", "is_gone", "Slots", "Line", "connect"}
    used |= {"in_thread", "pour"}
    assert used <= set(dir(aio))
    assert used <= set(dir(sio))


def test_a_rollout_without_an_event_loop(sync_client: Sandboxd, tmp_path: Path) -> None:
    with sync_client.lease("python", files={"a": "1\n"}) as sandbox:
        assert sandbox.exec("cat a").check().stdout == "1\n"
        events = list(sandbox.stream("echo x; exit 2"))
        assert [e.data for e in events if isinstance(e, Stdout)] == [b"x\n"]
        assert isinstance(events[-1], Ended)
        assert events[-1].result.exit_code == 2
        (tmp_path / "up").mkdir()
        (tmp_path / "up" / "f").write_bytes(b"z" * 2_000_000)
        sandbox.files.upload(tmp_path / "up", "up")
        sandbox.files.download("up", tmp_path / "down")
        assert (tmp_path / "down" / "f").read_bytes() == b"z" * 2_000_000
        with pytest.raises(FileNotFound):
            sandbox.files.read("nope")
    assert sandbox.release(wait_s=5).state == "ended"


def test_a_process_and_a_shell(sandbox: Sandbox) -> None:
    process = sandbox.start(["cat"], stdin_open=True)
    process.write("in")
    process.close_stdin()
    assert process.wait().stdout == "in"
    with sandbox.shell(env={"Y": "2"}) as shell:
        shell.run("X=1")
        assert shell.run("echo $X$Y").stdout == "12\n"


def test_a_stream_that_is_left_early_gives_its_connection_back(daemon_url: str) -> None:
    with Sandboxd(daemon_url, connections=1, patience_s=1) as client:
        sandbox = client.lease("python")
        for _ in range(3):
            for event in sandbox.stream("echo a; cat", stdin_open=True):
                if isinstance(event, Stdout):
                    break
            assert sandbox.exec("true").ok


def test_cleanup_is_bounded_also_where_nothing_can_be_cancelled() -> None:
    start = sio.now()
    with sio.shielded(0.05):
        sio.sleep(60)
    assert sio.now() - start < 5
