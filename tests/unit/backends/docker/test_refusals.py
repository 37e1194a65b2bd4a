"""Sentences that engines really said, and what they mean here."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd.backends.docker.doctor import _machine
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
    "OCI runtime create failed: unable to join session keyring: unable to create session key: disk "
    "quota exceeded: unknown": (ErrorCode.START_FAILED, Fault.INFRA),
    "failed to create fsnotify watcher: too many open files": (
        ErrorCode.START_FAILED,
        Fault.INFRA,
    ),
    "accept4: too many open files": (ErrorCode.START_FAILED, Fault.INFRA),
    "fork/exec /usr/bin/containerd-shim-runc-v2: resource temporarily unavailable: unknown": (
        ErrorCode.START_FAILED,
        Fault.INFRA,
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


@pytest.mark.requirement("OP-05")
@pytest.mark.parametrize(
    ("words", "switch"),
    [
        ("unable to create session key: disk quota exceeded", "kernel.keys.root_maxkeys"),
        ("inotify_init1: too many open files", "fs.inotify.max_user_instances"),
        ("inotify_add_watch: no space left on device", "fs.inotify.max_user_watches"),
        ("pthread_create failed: Resource temporarily unavailable", "kernel.threads-max"),
    ],
)
def test_op_05_a_bound_of_the_machine_is_named_whatever_the_kernel_called_it(
    words: str, switch: str
) -> None:
    error = start_refused(EngineRefused(500, words), "python:3.12-slim")
    assert (error.code, error.fault) == (ErrorCode.START_FAILED, Fault.INFRA)
    assert f"`{switch}`" in error.detail
    assert words in error.detail


@pytest.mark.requirement("OP-05")
def test_op_05_doctor_lists_bounds_that_are_too_low_for_what_was_asked(tmp_path: Path) -> None:
    for file, bound in (
        ("kernel/keys/root_maxkeys", "200"),
        ("kernel/pid_max", "32768"),
        ("kernel/threads-max", "100000"),
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(f"{bound}\n")
    keys, processes = _machine(300, switches=tmp_path)
    assert (keys.ok, processes.ok) == (False, True)
    assert "kernel.keys.root_maxkeys=300" in keys.mend
    _, processes = _machine(2000, switches=tmp_path)
    assert "kernel.pid_max=40000" in processes.mend
    assert "threads-max" not in processes.mend
