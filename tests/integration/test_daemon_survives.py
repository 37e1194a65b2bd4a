"""The daemon killed, stopped and started over the local backend: what lived lives on, nothing is
run twice, nothing is left."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from sandboxd.backends.local.boxes import parse_documents
from sandboxd_client import Sandboxd
from tests.support.service import Service, service

pytestmark = [pytest.mark.serial, pytest.mark.timeout(90)]

CONFIG = """
[templates.python]
image = "host"
pool = {ready = 2, max = 40}
"""


def eventually(check: Callable[[], bool], *, within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.02)


def boxes(daemon: Service) -> set[str]:
    """Every box there is a directory of."""
    place = daemon.state / "boxes"
    return {entry.name for entry in place.iterdir()} if place.exists() else set()


def pool(daemon: Service) -> dict[str, int]:
    found: list[dict[str, int]] = httpx.get(f"{daemon.url}/v1/pools").json()["pools"]
    return found[0]


def full(daemon: Service) -> None:
    eventually(
        lambda: pool(daemon)["ready"] == 2 and pool(daemon)["disposing"] == 0,
        within_s=20,
        what="the pool is full",
    )


@pytest.mark.requirement("CR-01")
def test_kill_9_keeps_leases_running_commands_and_stock(tmp_path: Path) -> None:
    with service(tmp_path, config=CONFIG) as daemon:
        with Sandboxd(url=daemon.url) as client:
            sandboxes = [client.lease("python", idempotency_key=f"k{i}") for i in range(8)]
            script = (
                "for i in 1 2 3 4 5 6 7 8; do"
                " echo $i >> /workspace/lines; echo $i; sleep 0.4; done; exit 7"
            )
            running = [
                sandbox.start(["/bin/sh", "-c", script], exec_id="job") for sandbox in sandboxes
            ]
            assert len(running) == 8
            full(daemon)
        before = boxes(daemon)
        daemon.kill()
        assert boxes(daemon) == before
        began = time.monotonic()
        daemon.start()
        assert time.monotonic() - began < 6
        full(daemon)
        assert boxes(daemon) == before, "stock was made anew, or lost"
        with Sandboxd(url=daemon.url) as client:
            for number, old in enumerate(sandboxes):
                again = client.lease("python", idempotency_key=f"k{number}")
                assert again.id == old.id
                result = client.sandbox(old.id).process("job").wait()
                assert (result.outcome, result.exit_code) == ("exited", 7)
                assert result.stdout == "".join(f"{i}\n" for i in range(1, 9))
                lines = client.sandbox(old.id).files.read("/workspace/lines")
                assert lines == b"".join(b"%d\n" % i for i in range(1, 9))
                again.release()
        eventually(lambda: len(boxes(daemon)) == 2, within_s=20, what="released boxes are gone")


def test_a_box_that_died_while_no_daemon_ran_is_told_as_lost(tmp_path: Path) -> None:
    with service(tmp_path, config=CONFIG) as daemon:
        with Sandboxd(url=daemon.url) as client:
            dead, alive = client.lease("python"), client.lease("python")
        log = httpx.get(f"{daemon.url}/v1/sandboxes/{dead.id}/logs").text
        box_id = json.loads(log.splitlines()[0])["box_id"]
        daemon.kill()
        record = parse_documents((daemon.state / "boxes" / box_id / "box.json").read_text())
        os.kill(int(record["process"]["pid"]), signal.SIGKILL)
        daemon.start()
        with Sandboxd(url=daemon.url) as client:
            info = client.sandbox(dead.id).info()
            assert info.end is not None
            assert (info.end.reason, info.end.fault, info.end.mask) == ("died", "unknown", True)
            assert client.sandbox(alive.id).exec("echo ok").stdout == "ok\n"


def test_sigterm_ends_no_lease_and_is_quick(tmp_path: Path) -> None:
    with service(tmp_path, config=CONFIG) as daemon:
        with Sandboxd(url=daemon.url) as client:
            sandbox = client.lease("python")
            sandbox.exec("echo kept > /workspace/file")
        began = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - began < 10
        daemon.start()
        with Sandboxd(url=daemon.url) as client:
            assert client.sandbox(sandbox.id).files.read("/workspace/file") == b"kept\n"


def test_sighup_reads_templates_again_and_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    with service(tmp_path, config=CONFIG) as daemon:
        more = CONFIG + '\n[templates.more]\nimage = "host"\npool = {ready = 1, max = 2}\n'
        daemon.rewrite(more)

        def names() -> set[str]:
            found = httpx.get(f"{daemon.url}/v1/templates").json()["templates"]
            return {template["name"] for template in found}

        eventually(lambda: names() == {"python", "more"}, within_s=10, what="two templates")
        daemon.rewrite("this is [not toml")
        eventually(
            lambda: "reload.refused" in daemon.log.read_text(), within_s=10, what="a refusal"
        )
        assert names() == {"python", "more"}
        daemon.rewrite(CONFIG)


def test_a_second_daemon_on_the_same_state_directory_is_refused(tmp_path: Path) -> None:
    with service(tmp_path, config=CONFIG) as daemon:
        command = [*daemon.command("serve"), "--port", "0"]
        second = subprocess.run(
            command, capture_output=True, text=True, env=daemon.environ, timeout=30, check=False
        )
        assert second.returncode != 0
        assert f"process {daemon.pid}" in second.stderr
        assert "--state-dir" in second.stderr
        assert "Traceback" not in second.stderr
        assert httpx.get(f"{daemon.url}/readyz").status_code == 200


@pytest.mark.parametrize("damage", ["garbage", "newer"])
def test_a_bad_state_file_is_refused_with_its_mend(tmp_path: Path, damage: str) -> None:
    with service(tmp_path, config=CONFIG) as daemon:
        assert daemon.stop() == 0
        store = daemon.state / "leases.db"
        good = store.read_bytes()
        if damage == "garbage":
            store.write_bytes(b"no database" * 1000)
        else:
            with closing(sqlite3.connect(store)) as connection:
                connection.execute("PRAGMA user_version = 99")
        before = store.read_bytes()
        refused = subprocess.run(
            [*daemon.command("serve"), "--port", "0"],
            capture_output=True,
            text=True,
            env=daemon.environ,
            timeout=30,
            check=False,
        )
        assert refused.returncode != 0
        assert "Traceback" not in refused.stderr
        assert "move it aside" in refused.stderr or "newer sandboxd" in refused.stderr
        assert store.read_bytes() == before
        store.write_bytes(good)
        daemon.start()


@pytest.mark.requirement("CR-07")
def test_boxes_end_at_their_hard_end_though_the_daemon_never_comes_back(tmp_path: Path) -> None:
    with service(tmp_path, config=CONFIG) as daemon:
        with Sandboxd(url=daemon.url) as client:
            sandbox = client.lease("python", timeout_s=1)
            sandbox.start(["sleep", "300"])
        log = httpx.get(f"{daemon.url}/v1/sandboxes/{sandbox.id}/logs").text
        box_id = json.loads(log.splitlines()[0])["box_id"]
        record = parse_documents((daemon.state / "boxes" / box_id / "box.json").read_text())
        pid = int(record["process"]["pid"])
        daemon.kill()

        def gone() -> bool:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return True
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"

        eventually(gone, within_s=30, what="the guest ended itself")


@pytest.mark.requirement("LC-03")
def test_a_caller_killed_in_the_middle_leaves_no_lease_behind(tmp_path: Path) -> None:
    config = CONFIG.replace('image = "host"', 'image = "host"\nidle_timeout_s = 1')
    with service(tmp_path, config=config) as daemon:
        script = (
            "from sandboxd_client import Sandboxd\n"
            f"client = Sandboxd(url={daemon.url!r})\n"
            "held = [client.lease('python') for _ in range(5)]\n"
            "print('held', flush=True)\n"
            "import time; time.sleep(60)\n"
        )
        trainer = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, env=daemon.environ
        )
        assert trainer.stdout is not None
        with trainer.stdout:
            assert trainer.stdout.readline() == b"held\n"
            trainer.kill()
            trainer.wait()
        eventually(
            lambda: pool(daemon)["leased"] == 0 and pool(daemon)["disposing"] == 0,
            within_s=15,
            what="the dead trainer's leases are gone",
        )


def test_a_box_whose_set_up_kill_9_cut_short_is_removed_and_never_leased(tmp_path: Path) -> None:
    config = CONFIG.replace(
        "pool = {ready = 2", 'setup = ["touch /opt/begun", "sleep 3"]\npool = {ready = 2'
    )
    with service(tmp_path, config=config) as daemon:
        eventually(
            lambda: len(list((daemon.state / "boxes").glob("*/upper-opt/begun"))) == 2,
            within_s=20,
            what="two boxes are in the middle of their set-up",
        )
        before = boxes(daemon)
        daemon.kill()
        assert boxes(daemon) == before
        daemon.start()
        with Sandboxd(url=daemon.url) as client:
            sandbox = client.lease("python")
            assert [line["event"] for line in sandbox.logs()] == ["setup", "setup", "leased"]
        full(daemon)
        assert not boxes(daemon) & before
