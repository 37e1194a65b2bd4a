"""Clients of a kernel whose daemon is started anew: they are told, come back, and find it."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from tests.support.jupyter import Gateway, Kernel
from tests.support.service import service

pytestmark = pytest.mark.timeout(120)

CONFIG = """
[templates.python]
image = "host"
pool = {ready = 0, max = 2}
"""


def test_a_client_comes_back_to_its_kernel_after_a_restart_of_the_daemon(tmp_path: Path) -> None:
    session = uuid4().hex
    with service(tmp_path, config=CONFIG) as running, httpx.Client(timeout=60) as http:
        leased = http.post(f"{running.url}/v1/sandboxes", json={"template": "python"}).json()
        sandbox = f"/v1/sandboxes/{leased['id']}"
        token = http.post(f"{running.url}{sandbox}/tokens", json={}).json()["token"]

        def gateway() -> Gateway:
            return Gateway(http, running.url + sandbox, f"{running.url}/s/{token}/jupyter")

        kernel = gateway().start()
        with kernel.client(session=session) as client:
            client.run("kept = 5")
            assert running.stop() == 0
            with pytest.raises(ConnectionClosed) as closed:
                client.until(lambda said: False)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012
        running.start()
        kernel = Kernel(gateway(), kernel.id)
        with kernel.client(session=session) as client:
            assert client.run("print(kept)") == "5\n"
        assert kernel.cell("kept")["text"] == "5"
        running.kill()
        running.start()
        kernel = Kernel(gateway(), kernel.id)
        with kernel.client(session=session) as client:
            assert client.run("print(kept + 1)") == "6\n"
