"""What nobody thought of: every operation of our own OpenAPI document, tried with generated input.

Nothing an outsider sends may give a 500, a traceback, or an answer that is no problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from sandboxd.daemon import openapi
from tests.support.daemon import run_daemon

CONFIG = """
[templates.python]
image = "host"
pool = {ready = 1, max = 5, queue = 2}
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_daemon(tmp_path_factory.mktemp("schema"), config=CONFIG) as daemon:
        yield daemon.url


@pytest.fixture(scope="module")
def sandbox_id(url: str) -> str:
    body = httpx.post(f"{url}/v1/sandboxes", json={"template": "python"}).json()
    identity: str = body["id"]
    return identity


schema = schemathesis.openapi.from_dict(openapi())


def tame(case: schemathesis.Case[Any]) -> None:
    """Nothing waits for long."""
    if case.path == "/v1/events":
        case.method = "HEAD"  # the stream itself has no end
    if isinstance(case.query, dict):
        for name in ("wait_s", "timeout_s"):
            case.query.pop(name, None)
    if isinstance(case.body, dict):
        if "timeout_s" in case.body and not case.path.endswith("/renew"):
            case.body["timeout_s"] = 0.2
        if case.path == "/v1/sandboxes":
            case.body["wait"] = False
            case.body["timeout_s"] = 1


@pytest.mark.timeout(180)
@schema.parametrize()
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_input_gives_a_500(case: schemathesis.Case[Any], url: str, sandbox_id: str) -> None:
    if case.path_parameters and "sandbox_id" in case.path_parameters:
        case.path_parameters["sandbox_id"] = sandbox_id  # the rooms behind the door, too
    if case.method == "DELETE" and case.path.endswith("{sandbox_id}"):
        return  # the others need it
    if case.path == "/v1/sweep":
        return
    tame(case)
    response = case.call(base_url=url, timeout=10)
    assert response.status_code != 500, response.text
    assert "Traceback" not in response.text
    if response.status_code >= 400:
        assert response.headers["content-type"][0] == "application/problem+json", response.text
