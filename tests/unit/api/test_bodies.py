"""JSON bodies are bounded in bytes, in values and in the time that they take to arrive."""

from __future__ import annotations

import json
import time

import anyio
import pytest
from starlette.types import Message

from sandboxd.api.bodies import (
    MAX_JSON_BYTES,
    MAX_JSON_VALUES,
    JsonBody,
    RawBody,
    check_values,
)
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

MANY = MAX_JSON_VALUES + 2


@pytest.mark.parametrize(
    "body",
    [
        b'{"cmd":[' + b"1," * MANY + b"1]}",
        b"[" * MANY,
        b'{"a":' * MANY,
        json.dumps({str(n): "" for n in range(MANY)}).encode(),
        json.dumps(["\\"] * MANY).encode(),
        json.dumps(['"'] * MANY).encode(),
        b'"' * (8 * MANY) + b"," * MANY,
    ],
)
def test_too_many_values_are_refused(body: bytes) -> None:
    with pytest.raises(SandboxdError) as caught:
        check_values(body)
    assert caught.value.code is ErrorCode.BAD_REQUEST


@pytest.mark.parametrize(
    "text",
    ["," * 100_000, '[{"a", "b"}]' * 20_000, '\\",' * 50_000, "\\\\," * 50_000, "é,\n" * 40_000],
)
def test_what_stands_in_texts_does_not_count(text: str) -> None:
    check_values(json.dumps({"files": {"a.csv": {"text": text}}}).encode())
    check_values(json.dumps({"stdin": text, "cmd": ["cat"]}, ensure_ascii=False).encode())


def test_the_largest_body_is_looked_through_in_a_moment() -> None:
    began = time.process_time()
    for piece in (b'"', b'\\"', b"\\", b'",', b"a,"):
        body = piece * (MAX_JSON_BYTES // len(piece))
        try:
            check_values(body)
        except SandboxdError:
            continue
    assert time.process_time() - began < 5


@pytest.mark.anyio
@pytest.mark.virtual_time
async def test_a_body_that_never_ends_is_refused_in_time() -> None:
    async def receive() -> Message:
        await anyio.sleep(7)
        return {"type": "http.request", "body": b" ", "more_body": True}

    body = JsonBody(receive)
    began = anyio.current_time()
    with anyio.fail_after(1000):
        for _ in range(8):
            await body()
        with pytest.raises(SandboxdError) as caught:
            await body()
    assert caught.value.status == 408
    assert anyio.current_time() - began <= 61


@pytest.mark.anyio
@pytest.mark.virtual_time
async def test_once_the_body_is_in_a_caller_may_be_waited_for_as_long_as_it_takes() -> None:
    async def receive() -> Message:
        if body_is_in:
            await anyio.sleep(10_000)
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": b"{}", "more_body": False}

    body_is_in = False
    body = JsonBody(receive)
    await body()
    body_is_in = True
    with anyio.fail_after(20_000):
        assert (await body())["type"] == "http.disconnect"


@pytest.mark.anyio
@pytest.mark.virtual_time
async def test_an_upload_may_take_for_ever_but_not_stand_still() -> None:
    pauses = [200.0] * 20 + [100_000.0]

    async def receive() -> Message:
        await anyio.sleep(pauses.pop(0))
        return {"type": "http.request", "body": b"x", "more_body": True}

    body = RawBody(receive)
    with anyio.fail_after(10_000):
        for _ in range(20):
            await body()
        with pytest.raises(SandboxdError) as caught:
            await body()
    assert caught.value.status == 408
