"""Addresses of ports inside, as the SDK gives them to other programs."""

from __future__ import annotations

import httpx

from sandboxd_client import AsyncSandbox, AsyncSandboxd, Sandboxd
from tests.support.daemon import RunningDaemon


async def test_a_ports_address_leads_to_it_with_a_key_and_with_a_token(
    client: AsyncSandboxd, daemon: RunningDaemon
) -> None:
    async with client.lease("python") as sandbox:
        assert isinstance(sandbox, AsyncSandbox)
        token = await sandbox.token()
        plain, open_to_all = sandbox.port_url(8000), sandbox.port_url(8000, "/a?b=c", token=token)
        assert plain == f"{daemon.url}/v1/sandboxes/{sandbox.id}/ports/8000/"
        assert open_to_all == f"{token.url}/ports/8000/a?b=c"
        for url in (plain, open_to_all):
            async with httpx.AsyncClient() as http:
                answer = await http.get(url)
            assert (answer.status_code, answer.json()["details"]["reason"]) == (502, "refused")


def test_the_twin_gives_the_same_address(sync_client: Sandboxd) -> None:
    with sync_client.lease("python") as sandbox:
        url = sandbox.port_url(3000, "x")
    assert url == f"{sync_client.url}/v1/sandboxes/{sandbox.id}/ports/3000/x"
