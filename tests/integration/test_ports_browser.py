"""A real browser and a real web application inside a sandbox, with nothing but a port between."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from tests.support.browser import chromium
from tests.support.daemon import run_daemon

pytestmark = pytest.mark.timeout(120)  # a browser takes its time to start on a busy machine

PROGRAM = Path(__file__).parent.parent / "support" / "page_program.py"
# The application runs on this very Python and its packages, which a sandbox does not see by itself.
CONFIG = """
[server]
api_keys = [{{name = "alice", key = "alice-secret-key"}}]

[templates.page]
image = "host"
trusted_ports = {trusted}
resources = {{memory_mb = 512}}
mounts = [{mounts}]
"""
KEYLESS = CONFIG.replace(
    '[server]\napi_keys = [{{name = "alice", key = "alice-secret-key"}}]\n', ""
)
KEY = {"Authorization": "Bearer alice-secret-key"}


def config(text: str, *, trusted: bool) -> str:
    folders = sorted({sys.prefix, sys.base_prefix})
    mounts = ", ".join(f'{{source = "{each}", target = "{each}"}}' for each in folders)
    return text.format(trusted=str(trusted).lower(), mounts=mounts)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chrome]:
    if os.geteuid() != 0:
        pytest.skip("needs root: an ordinary user's sandboxes see no folder of a private home")
    with chromium(tmp_path / "profile") as chrome:
        yield chrome


@contextmanager
def application(http: httpx.Client) -> Iterator[str]:
    """The path of a sandbox in which the application answers on port 8000."""
    order = {"template": "page", "files": {"/tmp/app.py": {"text": PROGRAM.read_text()}}}
    leased = http.post("/v1/sandboxes", json=order)
    assert leased.status_code == 201, leased.text
    sandbox = f"/v1/sandboxes/{leased.json()['id']}"
    try:
        cmd = [sys.executable, "/tmp/app.py", "8000"]
        http.post(f"{sandbox}/execs", json={"cmd": cmd, "exec_id": "app", "detach": True})
        until(lambda: http.get(f"{sandbox}/ports/8000/").status_code == 200)
        yield sandbox
    finally:
        http.delete(sandbox)


def until(condition: Callable[[], bool], within_s: float = 30) -> None:
    due = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < due, "it never came true"
        time.sleep(0.05)


def test_a_web_application_works_through_its_port(browser: Chrome, tmp_path: Path) -> None:
    with (
        run_daemon(tmp_path, backend="local", config=config(CONFIG, trusted=True)) as daemon,
        httpx.Client(base_url=daemon.url, headers=KEY, timeout=30) as http,
        application(http) as sandbox,
    ):
        token = http.post(f"{sandbox}/tokens", json={}).json()["token"]
        below = f"/s/{token}/ports/8000"
        browser.get(daemon.url + below)

        def shown(name: str) -> str:
            return browser.find_element(By.ID, name).text

        expected = {
            "fetched": "hello from localhost:8000",
            "posted": "3000000",
            "socket": "echo:over and back:4000",
            "events": "123",
        }
        for name, text in expected.items():
            until(lambda name=name, text=text: shown(name) == text)  # type: ignore[misc]
        browser.find_element(By.NAME, "name").send_keys("Ada")
        browser.find_element(By.TAG_NAME, "button").click()
        until(lambda: browser.title == "done")
        assert browser.current_url == f"{daemon.url}{below}/done"
        assert shown("name") == "Ada"
        cookie = browser.get_cookie("name")
        assert cookie is not None and cookie["path"] == f"{below}/"


def test_a_page_inside_cannot_act_with_the_browsers_authority(
    browser: Chrome, tmp_path: Path
) -> None:
    with (
        run_daemon(tmp_path, backend="local", config=config(KEYLESS, trusted=False)) as daemon,
        httpx.Client(base_url=daemon.url, timeout=30) as http,
        application(http) as sandbox,
    ):
        browser.get(f"{daemon.url}{sandbox}/ports/8000/hostile")
        assert browser.title == "untouched"  # its scripts do not run
        browser.find_element(By.ID, "bait").click()
        # Whatever its form sent would have been answered before this is shown.
        browser.get(f"{daemon.url}/healthz")
        found = http.get("/v1/sandboxes").json()["sandboxes"]
        assert [each["id"] for each in found] == [sandbox.rpartition("/")[2]]
