"""An image that has no bash, which clients of this dialect name in every command."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sandboxd.compat.connect.envelopes import STREAM_TYPE, Envelopes, envelope
from sandboxd.compat.connect.protobuf import Fields, blob
from tests.support.daemon import run_daemon

SHELL = "/bin/sh"


def root_with_sh_alone(place: Path) -> Path:
    """An unpacked image of this machine's `sh` and the libraries that it needs."""
    told = subprocess.run(["ldd", SHELL], capture_output=True, text=True, check=True).stdout
    for file in [SHELL, *re.findall(r"(/\S+)", told)]:
        target = place / file.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(file).resolve(), target)
    for folder in ("etc", "tmp", "root", "proc", "dev", "sys", "run", "workspace"):
        (place / folder).mkdir(exist_ok=True)
    return place


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[tuple[httpx.Client, str]]:
    root = root_with_sh_alone(tmp_path / "image")
    (tmp_path / "daemon").mkdir()
    config = f'[templates.tiny]\nimage = "{root}"\npool = {{ready = 1, max = 2}}\n'
    config += '[compat.prime]\nimages = {"*" = "tiny"}\n'
    with (
        run_daemon(tmp_path / "daemon", backend="local", config=config) as daemon,
        httpx.Client(base_url=daemon.url, timeout=15) as http,
    ):
        made = http.post("/api/v1/sandbox", json={"name": "s", "docker_image": "any"}).json()
        http.get(f"/v1/sandboxes/{made['id']}", params={"wait_s": 10})
        yield http, f"/v1/sandboxes/{made['id']}/prime"


def test_its_commands_are_run_by_sh_in_both_dialects(gate: tuple[httpx.Client, str]) -> None:
    http, below = gate
    told = http.post(f"{below}/exec", json={"command": "echo $((6*7))"})
    assert told.json() == {"stdout": "42\n", "stderr": "", "exit_code": 0}
    command = blob(1, "/bin/bash") + blob(2, "-c") + blob(2, "echo by sh")
    session = blob(1, blob(3, "s-1"))
    for method, message in (("Start", blob(1, command) + blob(5, "s-1")), ("Connect", session)):
        answer = http.post(
            f"{below}/command_session.CommandSession/{method}",
            content=envelope(message),
            headers={"Content-Type": STREAM_TYPE},
        )
        events = [Fields(each).inner(1) for each in Envelopes().feed(answer.content)]
        output = b"".join(event.inner(2).data(1) for event in events)
        assert output == (b"by sh\n" if method == "Start" else b"")
        assert events[-1].inner(3).text(3) == "exit status 0"
