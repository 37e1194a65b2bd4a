"""JupyterLab pointed at a lease, in a real browser."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nbformat
import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.support.browser import chromium
from tests.support.jupyter import Gateway, until

# It is 150 MB of packages, too much for our own environment, and a browser is slow to start.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LAB = "jupyterlab>=4.4,<5"
CELLS = [
    "import os\nprint('in', os.getcwd())\nx = 6 * 7\nx",
    "from IPython.display import HTML, display\ndisplay(HTML('<b id=\"rich\">rich output</b>'))",
    "print('hello', input('who? '))",
    "1 / 0",
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The program, in an environment of its own; SANDBOXD_TEST_LAB names one that is there."""
    if given := os.environ.get("SANDBOXD_TEST_LAB"):
        yield Path(given)
        return
    place = tmp_path_factory.mktemp("lab")
    python = place / "bin" / "python"
    steps = [
        [sys.executable, "-m", "venv", "--without-pip", str(place)],
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", LAB],
    ]
    try:
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, timeout=400, check=False)
            if done.returncode != 0:
                assert os.environ.get("CI") != "true", done.stderr
                pytest.skip(f"JupyterLab cannot be had here: {done.stderr[-300:]}")
        yield place / "bin" / "jupyter"
    finally:
        shutil.rmtree(place)


@contextmanager
def serving(lab: Path, folder: Path, gateway: Gateway) -> Iterator[str]:
    """JupyterLab over that folder, its kernels at the gateway; its address."""
    words = [str(lab), "lab", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"]
    words += ["--IdentityProvider.token=", f"--ServerApp.root_dir={folder / 'work'}"]
    words += ["--LabApp.news_url=None", f"--gateway-url={gateway.url}"]
    own = {"HOME": str(folder), "JUPYTER_CONFIG_DIR": str(folder), "JUPYTER_PLATFORM_DIRS": "1"}
    log = folder / "lab.log"
    with log.open("wb") as out:
        server = subprocess.Popen(words, stdout=out, stderr=out, env={**os.environ, **own})
    try:
        found: list[str] = []

        def listens() -> bool:
            assert server.poll() is None, log.read_text()
            found[:] = re.findall(r"(http://127\.0\.0\.1:[1-9]\d*)/lab", log.read_text())
            return bool(found)

        until(listens, within_s=90)
        yield found[0]
    finally:
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(30)
        server.kill()
        server.wait()


def seen(browser: Chrome, selector: str) -> str:
    """The text of what a selector finds; empty while it is not there."""
    try:
        return "\n".join(each.text for each in browser.find_elements(By.CSS_SELECTOR, selector))
    except WebDriverException:
        return ""


def do(act: Callable[[], object]) -> None:
    """Do it, once it can be done."""

    def done() -> bool:
        try:
            act()
        except WebDriverException:
            return False
        return True

    until(done, within_s=60)


def run_next(browser: Chrome) -> None:
    keys = ActionChains(browser)
    keys.key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT).perform()


def test_a_notebook_in_jupyterlab_runs_in_a_sandbox(
    lab: Path, gateway: Gateway, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(each) for each in CELLS],
        metadata={"kernelspec": kernelspec},
    )
    nbformat.write(notebook, tmp_path / "work" / "try.ipynb")
    with serving(lab, tmp_path, gateway) as url, chromium(tmp_path / "profile") as browser:
        browser.get(f"{url}/lab/tree/try.ipynb")
        until(lambda: "| Idle" in seen(browser, "#jp-main-statusbar"), within_s=90)
        first = ".jp-Notebook .jp-CodeCell .jp-InputArea-editor"
        do(lambda: browser.find_element(By.CSS_SELECTOR, first).click())
        for _ in range(3):
            run_next(browser)
        box = ".jp-Stdin-input"
        do(lambda: browser.find_element(By.CSS_SELECTOR, box).send_keys("Ada" + Keys.ENTER))
        until(lambda: "hello Ada" in seen(browser, ".jp-Notebook"))
        do(browser.find_elements(By.CSS_SELECTOR, first)[3].click)
        run_next(browser)
        until(lambda: "ZeroDivisionError" in seen(browser, ".jp-Notebook"))
        shown = seen(browser, ".jp-Notebook")
        assert "in /workspace" in shown and "\n42" in shown
        assert browser.find_element(By.ID, "rich").text == "rich output"
        (kernel,) = gateway.http.get(f"{gateway.url}/api/kernels").json()
        assert (kernel["execution_state"], kernel["connections"]) == ("idle", 1)
        if place := os.environ.get("SANDBOXD_TEST_SCREENSHOTS"):
            browser.save_screenshot(str(Path(place) / "jupyterlab.png"))
