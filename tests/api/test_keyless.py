"""A daemon without keys speaks to this machine alone."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.daemon import run_daemon


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_daemon(tmp_path_factory.mktemp("keyless")) as daemon:
        yield daemon.url


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "169.254.169.254"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
def test_foreign_names_and_foreign_pages_are_refused(url: str, headers: dict[str, str]) -> None:
    response = httpx.get(f"{url}/v1/pools", headers=headers)
    assert response.status_code == 403
    assert response.json()["code"] == "forbidden"


@pytest.mark.parametrize(
    "headers", [{}, {"Host": "localhost:1"}, {"Host": "[::1]:8420"}, {"Origin": "http://localhost"}]
)
def test_loopback_names_are_served(url: str, headers: dict[str, str]) -> None:
    assert httpx.get(f"{url}/v1/pools", headers=headers).status_code == 200
