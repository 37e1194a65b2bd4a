"""Calls that begin something: what a cancelled caller knows, how long a busy server may take."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxd.backends.kubernetes.talking import server as talking
from sandboxd.backends.kubernetes.talking.server import ApiServer, Json, open_server
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode
from tests.support.small_server import Answer, Answers, access_to, small_server

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def server_with(answers: Answers, folder: Path) -> AsyncIterator[ApiServer]:
    with small_server(answers) as url:
        server = await open_server(access_to(url, folder), threads=2)
        try:
            yield server
        finally:
            await server.aclose()


async def test_a_cancelled_caller_still_hears_of_what_it_began(tmp_path: Path) -> None:
    def slowly(_: str, body: dict[str, Any]) -> Answer:
        time.sleep(0.3)
        return Answer(body=body)

    heard: list[Json] = []
    async with server_with(slowly, tmp_path) as server:
        with anyio.move_on_after(0.05) as scope:
            heard.append(await server.begin("/api/v1/things", {"name": "one"}))
            await anyio.sleep(10)
    assert scope.cancelled_caught
    assert heard == [{"name": "one"}]


async def test_a_busy_servers_wish_for_patience_is_no_part_of_the_wait_for_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talking, "_FINISH_S", 0.5)
    answers = iter(
        [
            Answer(body={"message": "busy"}, status=429, headers={"Retry-After": "1"}),
            Answer(body={"name": "one"}),
        ]
    )
    async with server_with(lambda _path, _body: next(answers), tmp_path) as server:
        with anyio.fail_after(10):
            assert await server.begin("/api/v1/things", {}) == {"name": "one"}


async def test_a_caller_that_is_cancelled_while_a_server_is_busy_begins_nothing(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    def busy(path: str, _: dict[str, Any]) -> Answer:
        asked.append(path)
        return Answer(body={}, status=429, headers={"Retry-After": "30"})

    async with server_with(busy, tmp_path) as server:
        with anyio.move_on_after(0.5) as scope:
            await server.begin("/api/v1/things", {})
    assert scope.cancelled_caught
    assert len(asked) == 1


async def test_an_answer_that_does_not_come_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talking, "_FINISH_S", 0.1)

    def slowly(_: str, body: dict[str, Any]) -> Answer:
        time.sleep(0.4)
        return Answer(body=body)

    async with server_with(slowly, tmp_path) as server:
        with pytest.raises(SandboxdError) as caught:
            await server.begin("/api/v1/things", {})
    assert caught.value.code is ErrorCode.BACKEND_UNAVAILABLE
