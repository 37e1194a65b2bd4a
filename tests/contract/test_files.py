"""Files over HTTP: exact at every size, inside the sandbox's own view, with its user's rights."""

from __future__ import annotations

import hashlib
import io
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from tests.contract.speaker import Speaker, problem, rss_bytes
from tests.support.daemon import RunningDaemon

FILE_FIELDS = {"path", "name", "type", "size", "mode", "user", "group", "modified_at"}


def put(sandbox: Speaker, path: str, data: bytes = b"", **query: Any) -> httpx.Response:
    return sandbox.http.put(f"{sandbox.path}/files", params={"path": path, **query}, content=data)


def listed(sandbox: Speaker, path: str, **query: Any) -> list[dict[str, Any]]:
    """Every entry, page by page."""
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = sandbox.get("/files/list", path=path, **query, **cursor).json()
        found += page["files"]
        if page["next_cursor"] is None:
            return found
        cursor = {"cursor": page["next_cursor"]}


@pytest.mark.requirement("FI-05")
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "size", [0, 1, 98_303, 98_304, 98_305, 131_071, 131_072, 131_073, 1 << 20, 100 << 20]
)
def test_files_of_any_size_go_in_and_come_out_equal(sandbox: Speaker, size: int) -> None:
    """FI-05."""
    data = Random(size).randbytes(size)  # noqa: S311
    made = put(sandbox, "deep/er/f.bin", data, mode="755")
    assert made.status_code == 201
    assert set(made.json()) >= FILE_FIELDS
    assert (made.json()["size"], made.json()["mode"]) == (size, 0o755)
    digest = hashlib.sha256(data).hexdigest()
    assert sandbox.exec("sha256sum deep/er/f.bin")["stdout"][:64] == digest
    back = sandbox.get("/files", path="deep/er/f.bin")
    assert hashlib.sha256(back.content).hexdigest() == digest
    assert put(sandbox, "deep/er/f.bin", b"again").status_code == 200
    assert sandbox.get("/files/stat", path="deep/er/f.bin").json()["mode"] == 0o755


def test_parts_of_a_file_are_read_by_offset_and_limit(sandbox: Speaker) -> None:
    put(sandbox, "f", b"0123456789")
    assert sandbox.get("/files", path="f", offset=3, limit=4).content == b"3456"
    assert sandbox.get("/files", path="f", offset=10).content == b""
    assert sandbox.get("/files", path="f", limit=0).content == b""
    problem(sandbox.get("/files", path="f", offset=11), 416, "bad_request")


@pytest.mark.requirement("FI-02")
def test_links_lead_about_inside_the_sandbox_and_never_out(sandbox: Speaker) -> None:
    """FI-02."""
    host = {p: Path(p).read_bytes() for p in ("/etc/passwd", "/etc/hostname")}
    sandbox.exec(
        "ln -s /etc/passwd out.txt; ln -s / root; ln -s loop loop; ln -s nowhere/x dangling"
    )
    assert put(sandbox, "out.txt", b"planted\n").status_code == 200
    assert put(sandbox, "root/etc/planted", b"planted too\n").status_code == 201
    for path, data in host.items():
        assert Path(path).read_bytes() == data
    assert not Path("/etc/planted").exists()
    assert sandbox.exec("cat /etc/passwd /etc/planted")["stdout"] == "planted\nplanted too\n"
    assert sandbox.get("/files", path="root/etc/planted").content == b"planted too\n"
    for response in (sandbox.get("/files", path="loop"), put(sandbox, "loop", b"x")):
        problem(response, 404, "file_not_found")
    assert sandbox.get("/files/stat", path="loop", follow=False).json()["target"] == "loop"


@pytest.mark.requirement("FI-03")
def test_file_errors_are_told_apart(sandbox: Speaker) -> None:
    """FI-03."""
    sandbox.exec("mkdir d; touch d/x closed; chmod 0 closed; mkfifo pipe; chmod 777 .")
    for path, status, code in (
        ("missing", 404, "file_not_found"),
        ("missing/parent", 404, "file_not_found"),
        ("d", 409, "file_is_directory"),
        ("/etc/passwd/x", 409, "file_not_directory"),
        ("n" * 5000, 422, "name_too_long"),
        ("pipe", 403, "file_forbidden"),
    ):
        body = problem(sandbox.get("/files", path=path), status, code)
        assert body["sandbox_id"] == sandbox.path.rsplit("/", 1)[1]
    problem(sandbox.get("/files", path="closed", user="1000"), 403, "file_forbidden")
    problem(put(sandbox, "/etc/passwd/x"), 409, "file_not_directory")
    problem(put(sandbox, "d"), 409, "file_is_directory")
    problem(put(sandbox, "n" * 300), 422, "name_too_long")
    problem(sandbox.get("/files/list", path="d/x"), 409, "file_not_directory")
    problem(sandbox.http.delete(f"{sandbox.path}/files?path=d"), 409, "file_is_directory")
    assert sandbox.http.delete(f"{sandbox.path}/files?path=d&recursive=true").status_code == 204
    problem(sandbox.http.delete(f"{sandbox.path}/files?path=d"), 404, "file_not_found")
    moved = {"from": "pipe", "to": "closed", "overwrite": False}
    problem(sandbox.post("/files/move", moved), 409, "file_exists")


NAMES = [
    "a\nb", "-rf", "'", '"', "$(touch PWN)", ";touch PWN", "*", "a b ", "~", "é", "e\u0301",
    "🐍", "%41", "a+b", "a?b#c&d", "\\", "..x",
]  # fmt: skip


@pytest.mark.requirement("FI-08")
def test_names_of_every_kind_round_trip(sandbox: Speaker) -> None:
    """FI-08, SE-10."""
    for name in NAMES:
        assert put(sandbox, f"names/{name}", name.encode()).status_code == 201
        assert sandbox.get("/files/stat", path=f"names/{name}").json()["name"] == name
        assert sandbox.get("/files", path=f"names/{name}").content == name.encode()
    assert {entry["name"] for entry in listed(sandbox, "names")} == set(NAMES)
    for name in NAMES:
        moved = sandbox.post("/files/move", {"from": f"names/{name}", "to": f"moved/{name}"})
        assert moved.json()["name"] == name
    assert listed(sandbox, "names") == []
    for name in NAMES:
        gone = sandbox.http.delete(f"{sandbox.path}/files", params={"path": f"moved/{name}"})
        assert gone.status_code == 204
    assert sandbox.exec("ls -A moved | wc -l; find / -xdev -name PWN")["stdout"] == "0\n"
    assert not Path("PWN").exists()


def test_a_name_that_is_no_text_is_named_in_base64(sandbox: Speaker) -> None:
    sandbox.exec("mkdir raw; printf data > \"raw/$(printf 'x\\377')\"")
    entry = listed(sandbox, "raw")[0]
    assert entry["name_b64"] == "eP8="
    assert sandbox.get("/files", path_b64="cmF3L3j/").text == "data"


@pytest.mark.requirement("FI-09")
def test_files_belong_to_the_sandboxs_user(http: httpx.Client) -> None:
    """FI-09: the daemon is root here, or not; the file is the user's."""
    made = http.post(
        "/v1/sandboxes", json={"template": "user", "files": {"given": {"text": "x", "mode": 0o640}}}
    )
    if made.status_code == 501:
        pytest.skip(made.json()["detail"])
    sandbox = Speaker(http, f"/v1/sandboxes/{made.json()['id']}")
    put(sandbox, "f", b"#!/bin/sh\n")
    seen = sandbox.exec("echo 'echo works' >> f; chmod +x f; ./f; stat -c '%u %a' f given; id -u")
    assert seen["stdout"] == "works\n1000 755\n1000 640\n1000\n"
    problem(put(sandbox, "/etc/planted"), 403, "file_forbidden")
    assert put(sandbox, "/root-owned", user="0").status_code in {201, 403}
    sandbox.http.delete(sandbox.path)


def test_permission_bits_given_as_text_are_octal_everywhere(http: httpx.Client) -> None:
    files = {"a": {"text": "x", "mode": "0755"}, "b": {"text": "x", "mode": 0o600}}
    made = http.post("/v1/sandboxes", json={"template": "python", "files": files}).json()
    sandbox = Speaker(http, f"/v1/sandboxes/{made['id']}")
    sandbox.post("/files/mkdir", {"path": "d", "mode": "700"})
    assert sandbox.exec("stat -c %a a b d")["stdout"] == "755\n600\n700\n"
    problem(sandbox.post("/files/mkdir", {"path": "e", "mode": "rwx"}), 422, "bad_request")
    http.delete(sandbox.path)


@pytest.mark.requirement("FI-12")
@pytest.mark.timeout(60)
def test_fifty_thousand_names_are_listed_once_each_in_pages(sandbox: Speaker) -> None:
    """FI-12."""
    make = "import os\nos.mkdir('many')\nfor n in range(50_000): open(f'many/f{n}', 'w').close()"
    assert sandbox.exec(["python3", "-c", make])["exit_code"] == 0
    began = time.monotonic()
    names = [entry["name"] for entry in listed(sandbox, "many", limit=1000)]
    assert time.monotonic() - began < 10
    assert names == sorted(f"f{n}" for n in range(50_000))
    first = sandbox.get("/files/list", path="many").json()
    assert (len(first["files"]), first["next_cursor"] is None) == (100, False)


@pytest.mark.requirement("FI-12")
def test_a_tree_200_deep_is_listed_whole_over_pages(sandbox: Speaker) -> None:
    """FI-12."""
    make = (
        "import os\n"
        "path = 'deep'\n"
        "for n in range(200):\n"
        "  os.makedirs(path)\n"
        "  open(path + '/a', 'w').close(); open(path + '/z', 'w').close()\n"
        "  path += '/d'\n"
    )
    assert sandbox.exec(["python3", "-c", make])["exit_code"] == 0
    found = [entry["path"] for entry in listed(sandbox, "deep", recursive=True, limit=37)]
    assert len(found) == len(set(found)) == 599
    assert sum(path.endswith("/a") for path in found) == 200
    whole = sandbox.get("/files/list", path="deep", recursive=True, limit=1000).json()
    assert ([entry["path"] for entry in whole["files"]], whole["next_cursor"]) == (found, None)


@pytest.mark.requirement("FI-06")
@pytest.mark.timeout(120)
def test_four_readers_of_a_huge_file_do_not_fill_the_daemon(
    daemon: RunningDaemon, sandbox: Speaker
) -> None:
    """FI-06: a sparse file, so that only reading costs."""
    sandbox.exec("truncate -s 2G huge; printf end | dd of=huge bs=1 seek=2147483645 conv=notrunc")
    before = rss_bytes(daemon.pid)
    most = 0

    def read(number: int) -> tuple[int, bytes]:
        nonlocal most
        size, last = 0, b""
        query = {"path": "huge"} | ({"limit": str(1 << 28)} if number else {})
        with sandbox.http.stream("GET", f"{sandbox.path}/files", params=query) as response:
            for piece in response.iter_raw(1 << 20):
                size, last = size + len(piece), piece[-3:]
                most = max(most, rss_bytes(daemon.pid))
        return size, last

    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(read, range(4)))
    assert seen[0] == (2 << 30, b"end")
    assert [size for size, _ in seen[1:]] == [1 << 28] * 3
    assert most - before < 256 << 20
    tail = sandbox.get("/files", path="huge", offset=(2 << 30) - 3)
    assert (tail.content, tail.headers["x-file-size"]) == (b"end", str(2 << 30))


def test_head_tells_a_files_size_and_sends_nothing(sandbox: Speaker) -> None:
    sandbox.exec("truncate -s 1G big")
    seen = sandbox.http.head(f"{sandbox.path}/files", params={"path": "big"})
    assert (seen.status_code, seen.headers["content-length"]) == (200, str(1 << 30))
    gone = sandbox.http.head(f"{sandbox.path}/files", params={"path": "missing"})
    assert (gone.status_code, gone.content) == (404, b"")
    assert sandbox.http.head(sandbox.path).status_code == 200


def archive(*members: tuple[str, str | bytes]) -> bytes:
    """A tar of files (bytes) and links (text: where they lead)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, what in members:
            member = tarfile.TarInfo(name)
            if isinstance(what, bytes):
                member.size = len(what)
                tar.addfile(member, io.BytesIO(what))
            else:
                member.type, member.linkname = tarfile.SYMTYPE, what
                tar.addfile(member)
    return out.getvalue()


@pytest.mark.parametrize(
    "members",
    [
        [("../evil", b"x")],
        [("/tmp/evil", b"x")],
        [("a/../../evil", b"x")],
        [("out", "/tmp"), ("out/evil", b"x")],
        [("out", "../.."), ("out/tmp/evil", b"x")],
    ],
)
def test_an_archive_that_leaves_its_target_is_refused(
    sandbox: Speaker, members: list[tuple[str, str | bytes]]
) -> None:
    at = f"{sandbox.path}/files/archive?path=in"
    refused = sandbox.http.put(at, content=archive(*members))
    assert problem(refused, 422, "bad_request")["detail"]
    found = sandbox.exec("find / -xdev -name evil 2>/dev/null; ls evil in/evil")["stdout"]
    assert found == ""


def test_archives_go_in_and_come_out(sandbox: Speaker) -> None:
    data = archive(("d/x", b"one"), ("d/l", "x"), ("é\n", b"two"))
    put_in = sandbox.http.put(f"{sandbox.path}/files/archive?path=in", content=data)
    assert (put_in.status_code, put_in.json()["bytes"]) == (200, 6)
    assert sandbox.exec("cat in/d/x in/d/l in/é*")["stdout"] == "oneonetwo"
    out = sandbox.get("/files/archive", path="in")
    assert out.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(out.content)) as tar:
        found = {member.name: member for member in tar}
        assert set(found) >= {"d/x", "d/l", "é\n"}
        assert (found["d/l"].linkname, found["d/x"].size) == ("x", 3)
    broken = sandbox.http.put(f"{sandbox.path}/files/archive?path=in", content=b"no tar" * 500)
    problem(broken, 422, "bad_request")


def test_an_upload_that_is_cut_leaves_the_old_file_and_no_trace(
    daemon: RunningDaemon, sandbox: Speaker
) -> None:
    put(sandbox, "f", b"old")

    def pieces() -> Iterator[bytes]:
        yield b"new" * 100_000
        raise ConnectionResetError

    for rest in ("files?path=f", "files/archive?path=."):
        with pytest.raises(ConnectionResetError):
            sandbox.http.put(f"{sandbox.path}/{rest}", content=pieces())
    assert sandbox.get("/files", path="f").content == b"old"
    assert sandbox.exec("ls -A")["stdout"] == "f\n"
    assert "Traceback" not in daemon.log.read_text()
