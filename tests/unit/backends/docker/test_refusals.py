"""Sentences that engines really said, and what they mean here."""

from __future__ import annotations

import pytest

from sandboxd.backends.docker.engine import EngineRefused
from sandboxd.backends.docker.refusals import start_refused
from sandboxd.wire.codes import ErrorCode, Fault

SAID = {
    "OCI runtime create failed: runc create failed: unable to start container process: "
    "exec: /run/sandbox-guest: exec format error: unknown": (ErrorCode.START_FAILED, Fault.TASK),
    "No such image: sha256:1234": (ErrorCode.IMAGE_UNAVAILABLE, Fault.TASK),
    "error creating overlay mount to /data: no space left on device": (
        ErrorCode.DISK_FULL,
        Fault.INFRA,
    ),
    "Unknown runtime specified kata": (ErrorCode.NOT_SUPPORTED, Fault.CLIENT),
    'could not select device driver "" with capabilities: [[gpu]]': (
        ErrorCode.NOT_SUPPORTED,
        Fault.CLIENT,
    ),
    "failed to create endpoint x on network y: adding interface veth7 to bridge br0 failed: "
    "exchange full": (ErrorCode.CAPACITY, Fault.INFRA),
    "could not find an available, non-overlapping IPv4 address pool among the defaults": (
        ErrorCode.CAPACITY,
        Fault.INFRA,
    ),
    "no available IPv4 addresses on this network's address pools": (
        ErrorCode.CAPACITY,
        Fault.INFRA,
    ),
    'invalid mount config for type "bind": bind source path does not exist: /data': (
        ErrorCode.START_FAILED,
        Fault.TASK,
    ),
    "something that nobody has seen before": (ErrorCode.START_FAILED, Fault.INFRA),
}


@pytest.mark.parametrize("words", SAID, ids=[words[:40] for words in SAID])
def test_what_an_engine_says_has_a_code_a_fault_and_its_own_words(words: str) -> None:
    error = start_refused(EngineRefused(500, words), "python:3.12-slim")
    assert (error.code, error.fault) == SAID[words]
    assert error.mask
    assert "python:3.12-slim" in error.detail
    assert words in error.detail
