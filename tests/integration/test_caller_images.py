"""Over HTTP nobody reads the machine through an image that no template has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conformance.conftest import MATRIX
from tests.support.daemon import run_daemon

CONFIG = """
[backend.local]
images = ["{images}"]

[templates.python]
image = "host"
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with something that only looks like an image, and a way out of it."""
    folder = tmp_path_factory.mktemp("images")
    (folder / "empty").mkdir()
    (folder / "way-out").symlink_to("/")
    return folder


@pytest.fixture(scope="module")
def client(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A caller of a daemon that makes boxes on this machine."""
    if gap := MATRIX["local"].missing():
        pytest.skip(gap)
    folder = tmp_path_factory.mktemp("daemon")
    with (
        run_daemon(folder, backend="local", config=CONFIG.format(images=images)) as daemon,
        httpx.Client(base_url=daemon.url, timeout=30) as opened,
    ):
        yield opened


@pytest.mark.parametrize(
    "image", ["/", "/etc", "/root", "/var/lib", "/proc/1/root", "..", "/usr/.."]
)
def test_a_directory_that_nobody_listed_is_forbidden(client: httpx.Client, image: str) -> None:
    answer = client.post("/v1/sandboxes", json={"template": "python", "image": image})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "backend.local.images" in answer.json()["detail"]
    alone = client.post("/v1/sandboxes", json={"image": image})
    assert alone.status_code == 403


def test_no_link_leads_out_of_a_listed_folder(client: httpx.Client, images: Path) -> None:
    answer = client.post("/v1/sandboxes", json={"image": f"{images}/way-out"})
    assert answer.status_code == 403


def test_prefetching_shows_no_directory_that_a_lease_could_not_name(
    client: httpx.Client, images: Path
) -> None:
    answer = client.post("/v1/images/prefetch", json={"images": ["host", "/etc"]})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    body = {"images": ["host", f"{images}/empty"]}
    answer = client.post("/v1/images/prefetch", params={"wait_s": 10}, json=body)
    states = [image["state"] for image in answer.json()["images"]]
    assert states == ["present", "failed"]
    listed = client.get("/v1/images").json()["images"]
    assert [image["reference"] for image in listed] == ["host"]


def test_what_lies_in_a_listed_folder_is_tried(client: httpx.Client, images: Path) -> None:
    answer = client.post("/v1/sandboxes", json={"image": f"{images}/empty"})
    assert (answer.status_code, answer.json()["code"]) == (424, "image_unavailable")


def test_more_than_the_machine_has_is_refused(client: httpx.Client) -> None:
    body = {"template": "python", "resources": {"memory_mb": 10_000_000}}
    answer = client.post("/v1/sandboxes", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_request")
    assert answer.json()["details"]["field"] == "resources.memory_mb"
