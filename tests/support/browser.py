"""A real Chromium without a window, for tests of what people look at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service


@contextmanager
def chromium(profile: Path, *, size: str = "1300,1000") -> Iterator[Chrome]:
    """Skips where there is none. profile: a folder of the test's own."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        reason = "needs Chromium (Debian: apt-get install chromium chromium-driver)"
        assert "CI" not in os.environ, reason
        pytest.skip(reason)
    options = ChromeOptions()
    options.binary_location = binary
    for flag in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync",
        "disable-background-networking", "disable-component-update", "disable-dev-shm-usage",
        "no-proxy-server", f"window-size={size}", f"user-data-dir={profile}",
    ):  # fmt: skip
        options.add_argument(f"--{flag}")
    chrome = Chrome(options=options, service=Service(executable_path=driver))
    try:
        yield chrome
    finally:
        chrome.quit()
