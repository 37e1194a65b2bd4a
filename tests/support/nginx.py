"""An nginx of a test's own in front of a daemon, as operators have one: its usual settings, its own
directory, and nothing left of it.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contract.speaker import eventually
from tests.support.daemon import ROOT

Servers = Callable[[int], str]

_END_S = 10

_CONFIG = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 2048; }}
http {{
  access_log off;
  server_tokens off;
  client_body_temp_path {folder}/bodies;
  proxy_temp_path {folder}/answers;
  fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u;
  scgi_temp_path {folder}/s;
  {servers}
}}
"""

_USUAL = """
server {{
  listen 127.0.0.1:{port};
  location / {{
    proxy_pass {target};
    proxy_read_timeout {read_timeout_ms}ms;
  }}
}}
"""
_PAGE = ROOT / "docs" / "operation.md"


def usual(target: str, *, read_timeout_s: float) -> Servers:
    """All as nginx has it, but for how long it waits for a byte of `target`."""
    timeout_ms = int(read_timeout_s * 1000)
    return lambda port: _USUAL.format(port=port, target=target, read_timeout_ms=timeout_ms)


_TIMED = """
log_format times "$request_time $request_method $uri $status";
server {{
  listen 127.0.0.1:{port};
  access_log {log} times;
  client_max_body_size 0;
  location / {{
    proxy_pass {target};
    proxy_http_version 1.1;
    proxy_set_header Host $host;
    proxy_request_buffering off;
    proxy_buffering off;
  }}
}}
"""


def timed(target: str, *, log: Path) -> Servers:
    """One that writes down how long each request took: a line of seconds, method, path, status."""
    return lambda port: _TIMED.format(port=port, target=target, log=log)


def as_documented(target: str, *, certificate: Path | None = None) -> Servers:
    """As the operations page has it. certificate: with its key beside it; None: no TLS."""
    (block,) = re.findall(r"```nginx\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found = block.replace("http://127.0.0.1:8420", target)
    if certificate is None:
        found = re.sub(r"  ssl_certificate.*\n", "", found).replace("443 ssl;", "443;")
    else:
        found = found.replace("/etc/sandboxd/tls.crt", str(certificate))
        found = found.replace("/etc/sandboxd/tls.key", str(certificate.with_suffix(".key")))
    return lambda port: found.replace("listen 443", f"listen 127.0.0.1:{port}")


def own_certificate(folder: Path) -> Path:
    """A certificate for 127.0.0.1 that nobody else vouches for, with its key beside it."""
    certificate = folder / "tls.crt"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(certificate.with_suffix(".key")), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate


@contextmanager
def nginx(folder: Path, servers: Servers) -> Iterator[str]:
    """Its address. servers: what stands in its `http`, by the port to listen on.

    Where there is no nginx the test is skipped, but never in CI.
    """
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        gap = "there is no nginx (Debian, Ubuntu: `apt-get install nginx-light`)"
        if os.environ.get("CI") == "true":
            pytest.fail(gap)
        pytest.skip(gap)
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(_CONFIG.format(folder=folder, servers=servers(port)), encoding="utf-8")
    command = [program, "-p", str(folder), "-c", str(config), "-e", str(folder / "error.log")]
    with (folder / "nginx.out").open("wb") as out:
        running = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        eventually(lambda: _listens(port), within_s=_END_S, what="nginx listens")
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait(_END_S)


def free_port() -> int:
    """A port of this machine that nobody had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
