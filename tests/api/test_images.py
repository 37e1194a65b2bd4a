"""Images over HTTP: listed, and had ready before their first sandbox."""

from __future__ import annotations

import httpx
import pytest

from sandboxd.wire.codes import ErrorCode
from tests.api.test_doors import problem


def test_a_prefetched_image_is_here_and_listed(alice: httpx.Client) -> None:
    body = {"images": ["one", "two", "one"]}
    answer = alice.post("/v1/images/prefetch", params={"wait_s": 10}, json=body)
    assert answer.status_code == 200, answer.text
    told = answer.json()["images"]
    assert [(image["reference"], image["state"]) for image in told] == [
        ("one", "present"),
        ("two", "present"),
    ]
    listed = {image["reference"]: image for image in alice.get("/v1/images").json()["images"]}
    assert {"host", "one", "two"} <= set(listed)  # `host` is a template's


def test_without_a_wait_the_answer_comes_at_once_and_asking_again_tells_more(
    alice: httpx.Client,
) -> None:
    body = {"images": ["later"]}
    first = alice.post("/v1/images/prefetch", json=body)
    assert first.status_code in {200, 202}
    second = alice.post("/v1/images/prefetch", params={"wait_s": 10}, json=body)
    assert second.json()["images"][0]["state"] == "present"


def test_the_list_comes_in_pages(alice: httpx.Client) -> None:
    alice.post("/v1/images/prefetch", params={"wait_s": 10}, json={"images": ["p1", "p2", "p3"]})
    seen: list[str] = []
    cursor = None
    while True:
        query = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = alice.get("/v1/images", params=query).json()
        assert len(page["images"]) <= 2
        seen += [image["reference"] for image in page["images"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert {"p1", "p2", "p3"} <= set(seen)
    assert len(seen) == len(set(seen))


def test_images_in_use_are_counted(alice: httpx.Client, sandbox: str) -> None:
    listed = {image["reference"]: image for image in alice.get("/v1/images").json()["images"]}
    assert listed["host"]["in_use"] >= 1
    assert listed["host"]["used_at"] > 1_700_000_000


@pytest.mark.parametrize(
    "body", [{}, {"images": []}, {"images": [""]}, {"images": ["a\0"]}, {"images": ["a"], "x": 1}]
)
def test_what_asks_for_nothing_is_refused(alice: httpx.Client, body: dict[str, object]) -> None:
    problem(alice.post("/v1/images/prefetch", json=body), 422, ErrorCode.BAD_REQUEST)


def test_a_sandboxs_token_opens_no_list_of_images(alice: httpx.Client, sandbox: str) -> None:
    token = alice.post(f"{sandbox}/tokens", json={"rights": "use"}).json()["token"]
    headers = {"Authorization": f"Bearer {token}"}
    for method, path in (("GET", "/v1/images"), ("POST", "/v1/images/prefetch")):
        answer = alice.request(method, path, headers=headers)
        problem(answer, 404, ErrorCode.NOT_FOUND)
