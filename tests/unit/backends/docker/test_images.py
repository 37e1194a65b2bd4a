"""What the imaging rooms decide, without an engine."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from sandboxd.backends.docker.imaging.budget import Keep, to_drop
from sandboxd.backends.docker.imaging.lanes import Lanes
from sandboxd.backends.docker.imaging.ledger import Entry, Ledger
from sandboxd.backends.docker.imaging.shelf import OnShelf
from sandboxd.backends.docker.imaging.verdicts import pull_failed
from sandboxd.backends.parts.pull_words import Cause, cause_of, retry_after_s
from sandboxd.wire.codes import ErrorCode, Fault

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]

MIB = 1 << 20

WORDS = {
    Cause.BUSY: [
        "toomanyrequests: You have reached your pull rate limit.",
        "received unexpected HTTP status: 429 Too Many Requests",
        "denied: too many requests",
    ],
    Cause.DISK: ["failed to register layer: write /usr/lib/x: no space left on device"],
    Cause.DIGEST: [
        "image config verification failed for digest sha256:01",
        "filesystem layer verification failed for digest sha256:01",
        "manifest verification failed for digest sha256:01",
    ],
    Cause.PLATFORM: ["no matching manifest for linux/amd64 in the manifest list entries"],
    Cause.DENIED: [
        'Head "http://r.example/v2/x/manifests/latest": no basic auth credentials',
        "pull access denied for x, repository does not exist or may require 'docker login'",
        "denied: requested access to the resource is denied",
        "unauthorized: authentication required",
    ],
    Cause.MISSING: [
        "manifest for r.example/x:y not found: manifest unknown: manifest unknown",
        "repository r.example/x not found: name unknown",
    ],
    Cause.INVALID: ["invalid reference format: repository name must be lowercase"],
    Cause.REGISTRY: [
        'Get "http://127.0.0.1:1/v2/": dial tcp 127.0.0.1:1: connect: connection refused',
        "received unexpected HTTP status: 500 Internal Server Error",
        'Get "https://r.example/v2/": dial tcp: lookup r.example: no such host',
        "x509: certificate signed by unknown authority",
        "words that nobody has seen before",
    ],
}


@pytest.mark.parametrize(
    ("cause", "words"), [(cause, words) for cause, several in WORDS.items() for words in several]
)
def test_an_engines_words_tell_the_cause(cause: Cause, words: str) -> None:
    assert cause_of(words) is cause


def test_only_what_the_registry_says_no_to_is_the_tasks_fault() -> None:
    faults = {cause: pull_failed("x", cause, "").fault for cause in Cause}
    assert {cause for cause, fault in faults.items() if fault is Fault.TASK} == {
        Cause.DIGEST,
        Cause.PLATFORM,
        Cause.DENIED,
        Cause.MISSING,
        Cause.INVALID,
    }
    assert {fault for fault in faults.values() if fault is not Fault.TASK} == {Fault.INFRA}
    full = pull_failed("x", Cause.DISK, "")
    assert (full.code, full.fault, full.mask) == (ErrorCode.DISK_FULL, Fault.INFRA, True)


def test_a_wait_that_the_registry_asks_for_is_read() -> None:
    assert retry_after_s("toomanyrequests: slow down, retry-after: 30 seconds") == 30
    assert retry_after_s("toomanyrequests") is None


async def test_a_lane_takes_so_many_and_is_forgotten_when_idle() -> None:
    lanes = Lanes(wide=2)
    now = most = 0

    async def go() -> None:
        nonlocal now, most
        async with lanes.on("r.example"):
            now += 1
            most = max(most, now)
            await anyio.sleep(1)
            now -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(7):
            tasks.start_soon(go)
    assert most == 2
    async with lanes.on("other.example"):
        assert list(lanes._lanes) == ["other.example"]


async def test_a_refusing_registry_is_left_alone_for_longer_each_time_until_it_answers() -> None:
    lanes = Lanes(wide=2)
    async with lanes.on("r.example") as lane:
        pauses = []
        for _ in range(8):
            pauses.append(lane.refused(None))
            await lane.quiet()
        assert 1.5 <= pauses[0] <= 2.5
        assert all(later > sooner for sooner, later in pairwise(pauses[:5]))
        assert max(pauses) <= 80
        lane.answered()
        assert lane.refused(None) <= 2.5
    async with lanes.on("r.example") as lane:  # it is not forgotten while it must be quiet
        assert lane.quiet_until > anyio.current_time()
        asked = anyio.current_time()
        assert lane.refused(300.0) == pytest.approx(300)
        await lane.quiet()
        assert anyio.current_time() - asked == pytest.approx(300)


def image(image_id: str, *tags: str, mib: int = 100) -> OnShelf:
    return OnShelf(image_id=image_id, tags=frozenset(tags), size_bytes=mib * MIB)


def entry(image_id: str, *names: str, pulled: bool = True) -> Entry:
    return Entry(image_id, list(names), pulled, 0.0)


NOTHING = Keep(image_ids=(), names=frozenset())


def test_the_longest_unused_go_until_the_rest_fits() -> None:
    shelf = {name: image(name, f"r.example/{name}:latest") for name in "abcd"}
    entries = [entry(name, f"r.example/{name}:latest") for name in "abcd"]
    assert to_drop(entries, shelf, NOTHING, budget_bytes=400 * MIB) == []
    assert to_drop(entries, shelf, NOTHING, budget_bytes=399 * MIB) == ["a"]
    assert to_drop(entries, shelf, NOTHING, budget_bytes=200 * MIB) == ["a", "b"]
    keep = Keep(image_ids={"a"}, names=frozenset({"r.example/b:latest"}))
    assert to_drop(entries, shelf, keep, budget_bytes=200 * MIB) == ["c", "d"]
    assert to_drop(entries, shelf, keep, budget_bytes=0) == ["c", "d"]


def test_what_others_pulled_or_named_neither_counts_nor_goes() -> None:
    shelf = {
        "theirs": image("theirs", "python:3", mib=9000),
        "shared": image("shared", "python:3.12", "their-own:1"),
        "untagged": image("untagged"),
    }
    entries = [
        entry("theirs", "docker.io/library/python:3", pulled=False),
        entry("shared", "docker.io/library/python:3.12"),
        entry("untagged", "r.example/moved:latest"),
        entry("gone", "r.example/gone:latest"),
    ]
    assert to_drop(entries, shelf, NOTHING, budget_bytes=200 * MIB) == []
    assert to_drop(entries, shelf, NOTHING, budget_bytes=1) == ["untagged"]


async def test_a_name_that_moves_on_stands_for_its_new_image_alone(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "images.json")
    ledger.note("old", "r.example/x:latest", at=1.0, pulled=True)
    ledger.note("new", "r.example/x:latest", at=2.0, pulled=True)
    ledger.note("new", "r.example/x:latest", at=1.5)
    assert [(e.image_id, e.names, e.asked_at) for e in ledger.entries()] == [
        ("old", [], 1.0),
        ("new", ["r.example/x:latest"], 2.0),
    ]


async def test_the_ledger_is_kept_and_only_the_daemon_may_read_it(tmp_path: Path) -> None:
    place = tmp_path / "docker" / "images.json"
    ledger = Ledger(place)
    await ledger.load()
    await ledger.save()
    assert not place.exists()  # nothing was to be said
    ledger.note("one", "r.example/x:latest", at=1.0, pulled=True)
    ledger.note("two", "r.example/y:latest", at=2.0)
    ledger.used("two", at=3.0)
    ledger.forget("three")
    await ledger.save()
    again = Ledger(place)
    await again.load()
    assert again.entries() == ledger.entries()
    assert place.parent.stat().st_mode & 0o077 == 0
    assert [path.name for path in place.parent.iterdir()] == ["images.json"]


async def test_a_ledger_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "docker").write_text("a file where the directory should be")
    ledger = Ledger(tmp_path / "docker" / "images.json")
    ledger.note("one", "r.example/x:latest", at=1.0, pulled=True)
    await ledger.save()
    assert ledger.get("one") is not None
