"""Files that an agent made odd: nothing waits on them, nothing of ours breaks, nothing is half."""

from __future__ import annotations

import io
import socket
import tarfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.contract.cases.forms import call
from tests.contract.speaker import Speaker, eventually, problem
from tests.contract.test_connections import errors
from tests.contract.test_files import listed, put
from tests.support.daemon import RunningDaemon


@pytest.mark.parametrize("path", ["fifo", "sock", "to-zero", "to-tty", "in/fifo", "/dev/zero"])
def test_what_is_no_file_is_refused_and_never_waited_for(sandbox: Speaker, path: str) -> None:
    make = "import socket; socket.socket(socket.AF_UNIX).bind('sock')"
    call(sandbox, f'mkfifo fifo; python3 -c "{make}"; mkdir in; ln -s ../fifo in/fifo')
    call(sandbox, "ln -s /dev/zero to-zero; ln -s /dev/tty to-tty")
    with ThreadPoolExecutor(12) as pool:  # more than the guest does at once
        reads = [pool.submit(sandbox.get, "/files", path=path) for _ in range(12)]
        for read in reads:
            problem(read.result(10), 403, "file_forbidden")
    problem(put(sandbox, path, b"x"), 403, "file_forbidden")
    problem(sandbox.get("/files/archive", path=path), 403, "file_forbidden")
    moved = sandbox.post("/files/move", {"from": path, "to": "/dev/shm/x"})  # another file system
    assert moved.status_code in {200, 403}


def test_accounts_that_are_no_files_stop_nothing(sandbox: Speaker) -> None:
    """Whoever is root inside may put anything in their place."""
    call(sandbox, "rm -f /etc/passwd /etc/group; mkfifo /etc/passwd /etc/group; echo x > f")
    with ThreadPoolExecutor(12) as pool:
        looks = [pool.submit(sandbox.get, "/files/stat", path="f") for _ in range(12)]
        assert {look.result(10).json()["user"] for look in looks} == {"0"}
    assert call(sandbox, "echo runs").stdout == b"runs\n"
    assert put(sandbox, "g", b"x", user="0").status_code == 201
    refused = call(sandbox, "true", user="nobody")
    assert (refused.outcome, refused.reason) == ("start_failed", "bad_user")


def test_what_can_be_opened_and_not_read_is_no_fault_of_ours(sandbox: Speaker) -> None:
    call(sandbox, "ln -s /proc/self/mem result.txt")
    problem(sandbox.get("/files", path="result.txt"), 403, "file_forbidden")


def test_a_tree_with_something_unreadable_is_refused_by_its_name(
    sandbox: Speaker, can: dict[str, Any]
) -> None:
    """An agent that closes a file must not look like a sandbox that broke."""
    if not can["other_users"]:
        pytest.skip("capability other_users is false: boxes of a daemon that is not root have one")
    call(sandbox, "mkdir -p t/closed; echo x > t/closed/f; echo y > t/g; chmod 755 . t")
    for name in ("t/closed", "t/g"):
        call(sandbox, f"chmod 0 {name}")
        refused = sandbox.get("/files/archive", path="t", user="1000")
        assert name in problem(refused, 403, "file_forbidden")["detail"]
        assert listed(sandbox, "t", recursive=True, user="1000")
        call(sandbox, f"chmod 755 {name}")
    whole = sandbox.get("/files/archive", path="t", user="1000").content
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        assert {member.name for member in tar} == {"g", "closed", "closed/f"}


@pytest.mark.parametrize("size", [600, 5000, 20_000, 38_000])
def test_an_archive_that_is_cut_leaves_no_half_file(sandbox: Speaker, size: int) -> None:
    put(sandbox, "in/f1", b"old")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number in range(4):
            member = tarfile.TarInfo(f"f{number}")
            member.size = 9_000
            tar.addfile(member, io.BytesIO(b"n" * 9_000))
    data = out.getvalue()[:size]
    at = f"{sandbox.path}/files/archive?path=in"
    problem(sandbox.http.put(at, content=data), 422, "bad_request")
    for entry in listed(sandbox, "in"):
        assert (entry["name"], entry["size"]) in {
            ("f1", 3), *((f"f{number}", 9_000) for number in range(4)),
        }  # fmt: skip


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 1000000\r\n\r\n" + b"x" * 300_000,
        b"Transfer-Encoding: chunked\r\n\r\n40000\r\n" + b"x" * 0x40000 + b"\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\nzz\r\n",
    ],
    ids=["length", "chunks", "nonsense"],
)
def test_a_write_that_is_cut_anywhere_leaves_the_old_file(
    daemon: RunningDaemon, sandbox: Speaker, rest: bytes
) -> None:
    put(sandbox, "d/f", b"old")
    host, port = daemon.url.removeprefix("http://").rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as line:
        ask = f"PUT {sandbox.path}/files?path=d/f HTTP/1.1\r\nHost: localhost\r\n"
        line.sendall(ask.encode() + rest)
    eventually(
        lambda: call(sandbox, "ls -A d; cat d/f").stdout == b"f\nold", within_s=10, what="as it was"
    )
    assert errors(daemon) == []


def test_a_file_that_shrinks_while_it_is_read_is_cut_and_never_looks_whole(
    daemon: RunningDaemon, sandbox: Speaker
) -> None:
    call(sandbox, "truncate -s 300M big")

    def read() -> None:
        with sandbox.http.stream("GET", f"{sandbox.path}/files", params={"path": "big"}) as answer:
            for number, _ in enumerate(answer.iter_raw(1 << 16)):
                if number == 0:
                    call(sandbox, "truncate -s 1M big")

    with pytest.raises(httpx.RemoteProtocolError):
        read()
    assert errors(daemon) == []
    assert "answer-cut" in daemon.log.read_text()


def test_a_move_that_fails_makes_no_directory(sandbox: Speaker) -> None:
    put(sandbox, "f", b"x")
    moved = sandbox.post("/files/move", {"from": "f", "to": "new/"})
    problem(moved, 409, "file_not_directory")
    assert call(sandbox, "ls").stdout == b"f\n"


@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_a_sparse_archive_is_unpacked(sandbox: Speaker, form: str) -> None:
    call(sandbox, f"truncate -s 5M s; printf end >> s; tar --format={form} -cSf /tmp/s.tar s")
    data = sandbox.get("/files", path="/tmp/s.tar").content
    assert len(data) < 100_000
    assert (
        sandbox.http.put(f"{sandbox.path}/files/archive?path=in", content=data).status_code == 200
    )
    assert call(sandbox, "cmp s in/s && echo same").stdout == b"same\n"
