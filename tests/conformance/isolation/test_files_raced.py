"""File calls against a sandbox that moves the ground under them: they act with its own rights and
in its own view, however the names turn meanwhile.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conformance.isolation.conftest import Yard
from tests.contract.speaker import Speaker

pytestmark = [
    pytest.mark.requirement("FI-02"),
    pytest.mark.timeout(180),
    pytest.mark.parametrize("tries", [60, pytest.param(300, marks=pytest.mark.slow)]),
]

_CANARY = "canary of a file that nobody here may touch"

# Swaps a folder for a link to the target and back, as fast as it can; the link counts the turns.
_SWAPPER = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
place, target = sys.argv[1:]
os.makedirs(place, exist_ok=True)
os.symlink(target, place + ".link")
open(place + ".turning", "w").close()
while True:
    libc.renameat2(-100, place.encode(), -100, (place + ".link").encode(), 2)
"""


@pytest.fixture
def victim(yard: Yard) -> Iterator[Path]:
    """A folder of the machine with a file in it."""
    place = yard.folder / "precious"
    place.mkdir(exist_ok=True)
    (place / "file").write_text(_CANARY)
    yield place
    assert [path.name for path in place.iterdir()] == ["file"]
    assert (place / "file").read_text() == _CANARY


def swapping(box: Speaker, place: str, target: str) -> str:
    """Start the swapper; its exec."""
    exec_id = box.start(["python3", "-c", _SWAPPER, place, target], timeout_s=170)
    while box.exec(["test", "-e", f"{place}.turning"])["exit_code"]:
        pass
    return exec_id


def stop(box: Speaker, exec_id: str) -> None:
    box.post(f"/execs/{exec_id}/signal", {"signal": "KILL"})
    assert box.ended(exec_id)["outcome"] == "killed"  # it turned to the end


def tarball(*names: str) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 5
            tar.addfile(member, io.BytesIO(b"taken"))
    return data.getvalue()


def call(box: Speaker, kind: str, place: str, number: int) -> int:
    """One file call of that kind on the place that turns; its status."""
    http, files = box.http, f"{box.path}/files"
    match kind:
        case "put":
            query = {"path": f"{place}/file"}
            answer = http.put(files, params=query, content=b"taken")
        case "get":
            answer = http.get(files, params={"path": f"{place}/file"})
            assert _CANARY not in answer.text
        case "unpack":
            query = {"path": place}
            answer = http.put(f"{files}/archive", params=query, content=tarball("file", "d/file"))
        case "pack":
            try:
                answer = http.get(f"{files}/archive", params={"path": place})
            except httpx.RemoteProtocolError:
                return 0  # cut: never a whole answer with something missing
            assert _CANARY.encode() not in answer.content
        case "delete":
            query = (
                {"path": place, "recursive": "true"} if number % 2 else {"path": f"{place}/file"}
            )
            answer = http.delete(files, params=query)
            box.http.post(f"{files}/mkdir", json={"path": place})
        case _:
            answer = http.post(
                f"{files}/move", json={"from": f"{place}/file", "to": f"{place}/moved"}
            )
    return answer.status_code


KINDS = ["put", "get", "unpack", "pack", "delete", "move"]


@pytest.mark.parametrize("kind_of_call", KINDS)
def test_no_call_ever_lands_on_the_machine(
    yard: Yard, root_box: Speaker, victim: Path, kind_of_call: str, tries: int
) -> None:
    """The folder of the machine by its whole path, and by the root and the folders of the guest."""
    for target in (str(victim), f"/proc/1/root{victim}", f"/proc/self/root{victim}"):
        place = f"/workspace/{kind_of_call}-{tries}-{abs(hash(target))}"
        exec_id = swapping(root_box, place, target)
        statuses = {call(root_box, kind_of_call, place, number) for number in range(tries // 3)}
        stop(root_box, exec_id)
        assert all(status < 500 for status in statuses), statuses


@pytest.mark.parametrize("kind_of_call", KINDS)
def test_a_user_s_calls_never_take_what_is_roots_inside(
    yard: Yard, kind_of_call: str, tries: int
) -> None:
    if not yard.has_users:
        pytest.skip("one user id in each sandbox")
    box = yard.lease("user")
    secret = f"printf '{_CANARY}' > /precious/file; chmod 600 /precious/file; chmod 755 /precious"
    assert box.exec(f"mkdir /precious; {secret}", user="0")["exit_code"] == 0
    box.exec("mkdir -p /tmp/own && rm -rf /tmp/own/*")
    exec_id = swapping(box, "/tmp/own/place", "/precious")
    statuses = {call(box, kind_of_call, "/tmp/own/place", number) for number in range(tries)}
    stop(box, exec_id)
    assert all(status < 500 for status in statuses), statuses
    left = box.exec("ls -A /precious; cat /precious/file; stat -c %u /precious/file", user="0")
    assert left["stdout"].split("\n") == ["file", _CANARY + "0", ""]
    yard.http.delete(box.path)


def test_the_swapper_does_turn(root_box: Speaker, tries: int) -> None:
    exec_id = swapping(root_box, f"/workspace/turning-{tries}", "/usr")
    seen = {
        root_box.get("/files/stat", path=f"/workspace/turning-{tries}/bin").status_code
        for _ in range(200)
    }
    stop(root_box, exec_id)
    assert seen == {200, 404}
