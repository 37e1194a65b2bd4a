"""Files: whole at every size, inside the sandbox alone, and refused by a name of their own."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from sandboxd_client import (
    FileForbidden,
    FileIsDirectory,
    FileNotDirectory,
    FileNotFound,
    NameTooLong,
    Sandbox,
    Sandboxd,
    SandboxdError,
)
from tests.contract.cases.forms import call
from tests.contract.speaker import Speaker, problem, rss_bytes
from tests.contract.test_files import archive, listed, put
from tests.support.daemon import RunningDaemon


@pytest.fixture
def there(sandbox: Speaker) -> Iterator[Sandbox]:
    """The same sandbox by the SDK."""
    with Sandboxd(str(sandbox.http.base_url).rstrip("/")) as client:
        yield client.sandbox(sandbox.path.rsplit("/", 1)[1])


@pytest.fixture
def users(http: httpx.Client) -> Iterator[Speaker]:
    """A sandbox whose user is 1000."""
    made = http.post("/v1/sandboxes", json={"template": "user"})
    if made.status_code == 501:
        pytest.skip(made.json()["detail"])
    yield Speaker(http, f"/v1/sandboxes/{made.json()['id']}")
    http.delete(f"/v1/sandboxes/{made.json()['id']}")


@pytest.mark.requirement("FI-02")
def test_fi_02_a_planted_link_leads_nowhere_outside(sandbox: Speaker, there: Sandbox) -> None:
    host = {path: Path(path).read_bytes() for path in ("/etc/passwd", "/etc/hostname")}
    call(sandbox, "mkdir /w; cd /w; ln -s /etc/passwd out.txt; ln -s / root; ln -s loop loop")
    assert put(sandbox, "/w/out.txt", b"planted\n").status_code == 200
    assert put(sandbox, "/w/root/etc/x", b"planted too\n").status_code == 201
    there.files.write("/w/root/etc/y", b"by the SDK\n")
    assert sandbox.get("/files", path="/w/out.txt").content == b"planted\n"
    assert there.files.read("/w/root/etc/x") == b"planted too\n"
    assert call(sandbox, "cat /etc/passwd /etc/x /etc/y").stdout == (
        b"planted\nplanted too\nby the SDK\n"
    )
    for path, data in host.items():
        assert Path(path).read_bytes() == data
    assert not Path("/etc/x").exists()
    assert not Path("/etc/y").exists()
    for answer in (
        sandbox.get("/files", path="/w/loop"),
        put(sandbox, "/w/loop", b"x"),
        sandbox.get("/files/list", path="/w/loop"),
        sandbox.get("/files/archive", path="/w/loop"),
        sandbox.get("/files/stat", path="/w/loop/x"),
    ):
        problem(answer, 404, "file_not_found")


@pytest.mark.requirement("FI-02")
def test_fi_02_nor_does_one_that_stands_where_an_archive_is_unpacked(sandbox: Speaker) -> None:
    call(sandbox, "mkdir -p /w/in; cd /w/in; ln -s /etc/passwd out.txt; ln -s / root")
    at = f"{sandbox.path}/files/archive?path=/w/in"
    for members in ([("root/etc/x", b"evil")], [("root/x", "../y")]):
        refused = sandbox.http.put(at, content=archive(*members))
        problem(refused, 422, "bad_request")
    # One in a file's own place is replaced.
    assert sandbox.http.put(at, content=archive(("out.txt", b"mine"))).status_code == 200
    seen = call(sandbox, "cat /w/in/out.txt; ls /etc/x /x; head -c 5 /etc/passwd")
    assert seen.stdout == b"mineroot:"


ERRORS: list[tuple[str, dict[str, str], int, str, type[SandboxdError]]] = [
    ("missing", {}, 404, "file_not_found", FileNotFound),
    ("missing/parent", {}, 404, "file_not_found", FileNotFound),
    ("d", {}, 409, "file_is_directory", FileIsDirectory),
    ("closed", {"user": "1000"}, 403, "file_forbidden", FileForbidden),
    ("/etc/passwd/x", {}, 409, "file_not_directory", FileNotDirectory),
    ("n" * 5000, {}, 422, "name_too_long", NameTooLong),
]


@pytest.mark.requirement("FI-03")
@pytest.mark.parametrize(("path", "query", "status", "code", "kind"), ERRORS)
def test_fi_03_each_way_of_not_being_read_has_its_own_name(
    sandbox: Speaker,
    there: Sandbox,
    can: dict[str, Any],
    path: str,
    query: dict[str, str],
    status: int,
    code: str,
    kind: type[SandboxdError],
) -> None:
    if query and not can["other_users"]:
        pytest.skip("capability other_users is false: boxes of a daemon that is not root have one")
    call(sandbox, "mkdir d; echo x > closed; chmod 0 closed; chmod 777 .")
    problem(sandbox.get("/files", path=path, **query), status, code)
    assert sandbox.http.head(
        f"{sandbox.path}/files", params={"path": path, **query}
    ).status_code == (status)
    with pytest.raises(kind) as caught:
        there.files.read(path, user=query.get("user"))
    assert caught.value.code == code
    if code != "file_is_directory":
        problem(sandbox.get("/files/archive", path=path, **query), status, code)


@pytest.mark.requirement("FI-03")
def test_fi_03_so_it_has_for_the_user_of_the_sandbox(users: Speaker) -> None:
    put(users, "/tmp/closed", b"x", mode="0")
    problem(users.get("/files", path="/tmp/closed"), 403, "file_forbidden")


SIZES = [0, 1, 98_303, 98_304, 98_305, 131_071, 131_072, 131_073, 1 << 20, 100 << 20]


@pytest.mark.requirement("FI-05")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("size", SIZES)
def test_fi_05_a_file_of_any_size_goes_in_and_out_whole(
    sandbox: Speaker, there: Sandbox, size: int
) -> None:
    data = bytes(range(256)) * (size // 256) + Random(size).randbytes(size % 256)  # noqa: S311
    digest = hashlib.sha256(data).hexdigest()
    info = there.files.write("by/the/sdk", data, mode=0o755)
    assert (info.size, info.mode) == (size, 0o755)
    assert put(sandbox, "by/http", data, mode="755").status_code == 201
    seen = call(sandbox, "sha256sum by/the/sdk by/http; stat -c %a by/the/sdk by/http").stdout
    assert seen.decode().split() == [digest, "by/the/sdk", digest, "by/http", "755", "755"]
    assert hashlib.sha256(there.files.read("by/http")).hexdigest() == digest
    assert hashlib.sha256(sandbox.get("/files", path="by/the/sdk").content).hexdigest() == digest


@pytest.mark.requirement("FI-06")
@pytest.mark.serial
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "size",
    [
        pytest.param(256 << 20, id="light"),
        pytest.param(2 << 30, id="whole", marks=pytest.mark.slow),
    ],
)
def test_fi_06_large_files_pass_through_without_being_held(
    daemon: RunningDaemon, sandbox: Speaker, size: int
) -> None:
    call(sandbox, f"truncate -s {size} huge; printf end | dd of=huge bs=1 seek={size - 3}")
    before, most = rss_bytes(daemon.pid), 0
    at = f"{sandbox.path}/files"

    def read(_: int) -> tuple[int, bytes, int]:
        total, last, seen = 0, b"", 0
        with sandbox.http.stream("GET", at, params={"path": "huge"}, timeout=200) as answer:
            for piece in answer.iter_raw(1 << 20):
                total, last = total + len(piece), piece[-3:]
                seen = max(seen, rss_bytes(daemon.pid))
        return total, last, seen

    with ThreadPoolExecutor(4) as pool:
        for total, last, seen in pool.map(read, range(4)):
            assert (total, last) == (size, b"end")
            most = max(most, seen)
    assert most - before < 256 << 20
    part = sandbox.get("/files", path="huge", offset=size - 5, limit=4)
    assert (part.content, part.headers["x-file-size"]) == (b"\0\0en", str(size))


NAMES = [
    "a\nb", "-rf", "'", '"', "$(touch /tmp/PWN)", ";id", "*", "a b ", "~", "é", "e\u0301", "🐍",
    "`touch PWN`", "%2e%2e", "a?b#c&d=+", "\\", " ", "\x1b[31m", "x" * 255,
]  # fmt: skip


@pytest.mark.requirement("FI-08")
def test_fi_08_odd_names_come_back_as_they_went(sandbox: Speaker, there: Sandbox) -> None:
    for name in NAMES:
        last = name.rpartition("/")[2]  # a slash makes directories of what is before it
        assert put(sandbox, f"names/{name}", name.encode()).status_code == 201
        assert sandbox.get("/files/stat", path=f"names/{name}").json()["name"] == last
        assert sandbox.get("/files", path=f"names/{name}").content == name.encode()
        assert there.files.read_text(f"names/{name}") == name
    top = {name.partition("/")[0] for name in NAMES}
    assert {entry["name"] for entry in listed(sandbox, "names")} == top
    assert {info.name for info in there.files.list("names")} == top
    files = {e["path"] for e in listed(sandbox, "names", recursive=True) if e["type"] == "file"}
    assert {path.partition("/names/")[2] for path in files} == set(NAMES)
    for name in NAMES:
        moved = sandbox.post("/files/move", {"from": f"names/{name}", "to": f"moved/{name}"})
        assert moved.json()["name"] == name.rpartition("/")[2]
        gone = sandbox.http.delete(f"{sandbox.path}/files", params={"path": f"moved/{name}"})
        assert gone.status_code == 204
    assert [entry for entry in listed(sandbox, "moved") if entry["type"] == "file"] == []
    assert call(sandbox, "find / -xdev -name PWN -type f").stdout == b""
    assert not Path("/tmp/PWN").exists()
    assert not Path("PWN").exists()


@pytest.mark.requirement("FI-08")
def test_fi_08_so_they_do_in_archives_and_leases(http: httpx.Client, sandbox: Speaker) -> None:
    names = [name for name in NAMES if "/" not in name]
    data = archive(*((name, name.encode()) for name in names))
    at = f"{sandbox.path}/files/archive?path=in"
    assert sandbox.http.put(at, content=data).json()["files"] == len(names)
    out = sandbox.get("/files/archive", path="in").content
    with tarfile.open(fileobj=io.BytesIO(out)) as tar:
        assert {member.name for member in tar} == set(names)
    given = {f"given/{name}": {"text": name} for name in names}
    made = http.post("/v1/sandboxes", json={"template": "python", "files": given}).json()
    leased = Speaker(http, f"/v1/sandboxes/{made['id']}")
    assert {entry["name"] for entry in listed(leased, "given")} == set(names)
    http.delete(leased.path)


@pytest.mark.requirement("FI-09")
def test_fi_09_a_written_file_belongs_to_the_sandboxs_user(users: Speaker) -> None:
    call(users, "mkdir -p /home/u; chown 1000 /home/u", user="root")
    assert put(users, "/home/u/f", b"#!/bin/sh\n").status_code == 201
    seen = call(users, "cd /home/u; echo 'echo works' >> f; chmod +x f; ./f; stat -c %u f")
    assert (seen.stdout, seen.exit_code) == (b"works\n1000\n", 0)
    data = archive(("d/g", b"#!/bin/sh\necho packed\n"))
    users.http.put(f"{users.path}/files/archive?path=/home/u", content=data)
    seen = call(users, "cd /home/u/d; chmod +x g; ./g; stat -c %u . g; echo >> g")
    assert (seen.stdout, seen.exit_code) == (b"packed\n1000\n1000\n", 0)
    assert put(users, "/home/u/r", b"x", user="root").json()["user"] == "root"
    problem(put(users, "/etc/planted"), 403, "file_forbidden")


@pytest.mark.requirement("FI-10")
@pytest.mark.parametrize(
    ("data", "start"),
    [
        pytest.param(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 0, id="png"),
        pytest.param("text".encode("utf-16"), 0, id="utf-16"),
        pytest.param("grüße".encode("latin-1"), 2, id="latin-1"),
        pytest.param(b"ok \xed\xa0\x80", 3, id="lone surrogate"),
    ],
)
def test_fi_10_bytes_that_are_no_text_say_where_and_can_be_read(
    there: Sandbox, data: bytes, start: int
) -> None:
    there.files.write("f", data)
    with pytest.raises(UnicodeDecodeError) as caught:
        there.files.read_text("f")
    assert caught.value.start == start
    assert there.files.read("f") == data


@pytest.mark.requirement("FI-10")
@pytest.mark.parametrize("text", ["\ufeffmarked", "one\r\ntwo\rthree\n", "nul \0 and no end"])
def test_fi_10_text_is_never_changed(sandbox: Speaker, there: Sandbox, text: str) -> None:
    there.files.write("f", text)
    assert there.files.read_text("f") == text
    assert sandbox.get("/files", path="f").content == text.encode()
    assert put(sandbox, "g", text.encode()).status_code == 201
    assert there.files.read_text("g") == text
