"""What the machine says of its network: certificates, proxies and the package index, to pass on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def machines_bundle() -> bytes:
    """The certificates that SSL_CERT_FILE names: a machine behind a proxy of its own has them."""
    path = os.environ.get("SSL_CERT_FILE", "")
    return Path(path).read_bytes() if path and Path(path).is_file() else b""


def network_environment() -> dict[str, str]:
    """The machine's proxies and its package index, as variables; nothing else of it."""
    env = {name: value for name in _PROXIES if (value := os.environ.get(name))}
    return env | ({"PIP_INDEX_URL": index} if (index := package_index()) else {})


def package_index() -> str:
    """The index that this machine's pip is told to use; empty for pip's own."""
    ask = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    answer = subprocess.run(ask, capture_output=True, text=True, timeout=60, check=False)
    found = answer.stdout.strip() if answer.returncode == 0 else ""
    return os.environ.get("PIP_INDEX_URL", found)
