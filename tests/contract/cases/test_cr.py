"""Bug cases CR: a daemon that is killed loses nothing, leaves nothing half-made, and need not come
back for its sandboxes to end."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from sandboxd_client import Sandbox, Sandboxd, Stdout
from tests.contract.cases.houses import House
from tests.contract.speaker import eventually
from tests.contract.verdicts.kinds import ended
from tests.support.nginx import as_documented, free_port, nginx

pytestmark = pytest.mark.serial

OpenHouse = Callable[..., AbstractContextManager[House]]

GUEST_GRACE_S = 10.0  # a guest's own end comes so much after the daemon's would


@pytest.mark.requirement("CR-01")
@pytest.mark.timeout(150)
def test_cr_01_a_daemon_that_was_killed_finds_everything_again(open_house: OpenHouse) -> None:
    job = "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i | tee -a ran; sleep 0.4; done; exit 3"
    lines = "".join(f"{number}\n" for number in range(1, 11))
    with open_house(pool="ready = 2, max = 30") as house:
        with Sandboxd(url=house.url) as client, ThreadPoolExecutor(10) as threads:
            held = list(threads.map(lambda _: lease(client), range(22)))
            house.full()
            for number, sandbox in enumerate(held):
                sandbox.files.write("whose", b"%d" % number)
            *kept, first, second = held
            short = {house.box_of(each.renew(1).id) for each in (first, second)}
            for sandbox in kept[:5]:
                sandbox.start(job, exec_id="job")
        before = house.boxes()
        house.service.kill()
        assert house.living() == before
        began = time.monotonic()
        house.service.start()
        with Sandboxd(url=house.url) as client:
            for number, sandbox in enumerate(kept):
                again = client.sandbox(sandbox.id)
                assert again.exec("cat whose").stdout == str(number)
            assert {client.sandbox(each.id).process("job").info().running for each in kept[:5]}
            for sandbox in (first, second):
                end = ended(client.sandbox(sandbox.id), within_s=10).end
                assert end is not None
                assert end.reason == "expired"
            assert time.monotonic() - began < 15
            for sandbox in kept[:5]:
                result = client.sandbox(sandbox.id).process("job").wait()
                assert (result.outcome, result.exit_code, result.stdout) == ("exited", 3, lines)
                assert client.sandbox(sandbox.id).files.read("ran").decode() == lines
        house.full()
        assert house.boxes() == before - short, "nothing was lost, and no stock made anew"


@pytest.mark.requirement("CR-01")
@pytest.mark.timeout(120)
def test_cr_01_a_daemon_that_is_killed_while_it_comes_back_loses_nothing(
    open_house: OpenHouse,
) -> None:
    """Again and again, at any moment of finding what is there."""
    chance = random.Random(11)  # noqa: S311
    with open_house(pool="ready = 2, max = 10") as house:
        with Sandboxd(url=house.url) as client:
            held = [lease(client) for _ in range(6)]
            held[0].start("sleep 2; exit 4", exec_id="job")
            house.full()
        before = house.boxes()
        house.service.kill()
        command = [*house.service.command("serve"), "--port", "0", "--backend", house.kind]
        for _ in range(6):
            half_way = subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=house.service.environ,
            )
            time.sleep(chance.uniform(0.3, 2))
            half_way.kill()
            half_way.wait()
        house.service.start()
        with Sandboxd(url=house.url) as client:
            for sandbox in held:
                assert client.sandbox(sandbox.id).exec("echo here").stdout == "here\n"
            assert client.sandbox(held[0].id).process("job").wait().exit_code == 4
        house.full()
        assert house.boxes() == before


@pytest.mark.requirement("CR-01")
@pytest.mark.timeout(120)
def test_cr_01_a_trainer_behind_a_proxy_notices_nothing_of_a_crash(
    open_house: OpenHouse, tmp_path: Path
) -> None:
    """In whatever way it waits for its commands."""
    text = "echo x >> ran; sleep 6; echo ok"

    def attached(sandbox: Sandbox) -> str:
        with sandbox.start(text).attach() as terminal:
            return "".join(event.text for event in terminal if isinstance(event, Stdout))

    def streamed(sandbox: Sandbox) -> str:
        return "".join(event.text for event in sandbox.stream(text) if isinstance(event, Stdout))

    ways: list[Callable[[Sandbox], str]] = [
        attached,
        streamed,
        lambda sandbox: sandbox.exec(text).stdout,
        lambda sandbox: sandbox.start(text).wait().stdout,
        lambda sandbox: sandbox.shell().run(text).stdout,
    ]
    with (
        open_house(pool="ready = 0, max = 9", port=free_port()) as house,
        nginx(tmp_path, as_documented(house.url)) as url,
        Sandboxd(url=url) as client,
        ThreadPoolExecutor(len(ways)) as threads,
    ):
        held = [lease(client) for _ in ways]
        said = [threads.submit(way, sandbox) for way, sandbox in zip(ways, held, strict=True)]
        with Sandboxd(url=house.url) as near:
            eventually(
                lambda: all(near.sandbox(each.id).execs() for each in held),
                within_s=20,
                what="all run",
            )
        house.service.kill()
        time.sleep(1)  # the proxy has nobody to ask
        house.service.start()
        assert [each.result(60) for each in said] == ["ok\n"] * len(ways)
        for sandbox in held:
            assert sandbox.files.read("ran") == b"x\n"
            sandbox.release()


def lease(client: Sandboxd) -> Sandbox:
    """A lease, however long its turn takes."""
    return client.lease("python", wait_timeout_s=90)


@pytest.mark.requirement("CR-04")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_cr_04_a_crash_among_creates_leaves_nothing_half_made(
    open_house: OpenHouse, rounds: int
) -> None:
    """What a caller was told of is there; what none was told of goes when its time is up."""
    chance, life_s = random.Random(4), 20  # noqa: S311
    with open_house(pool="ready = 2, max = 70", template=f"timeout_s = {life_s}") as house:
        told: list[str] = []
        for number in range(rounds):
            with ThreadPoolExecutor(31) as threads:
                asked = [threads.submit(create, house.url, number % 2 == 0) for _ in range(30)]
                time.sleep(chance.uniform(0, 1.5))
                house.service.kill()
                new = [found for each in asked if (found := each.result())]
            house.service.start()
            with Sandboxd(url=house.url) as client:
                states = {client.sandbox(sandbox_id).info().state for sandbox_id in new}
                assert states <= {"leased", "queued", "making", "ending", "ended"}
                for sandbox_id in new:
                    client.sandbox(sandbox_id).release()
            told += new
        house.empty(within_s=life_s + 60)
        assert len(house.boxes()) == 2
        assert house.other_objects() == []
        assert len(set(told)) == len(told)


def create(url: str, wait: bool) -> str | None:
    """Ask for a sandbox; its id, if there is an answer before the daemon dies."""
    body = {"template": "python", "wait": wait}
    try:
        answer = httpx.post(f"{url}/v1/sandboxes", json=body, timeout=60)
    except httpx.TransportError:
        return None
    return str(answer.json()["id"]) if answer.status_code in {201, 202} else None


@pytest.mark.requirement("CR-07")
@pytest.mark.timeout(120)
def test_cr_07_a_daemon_that_never_comes_back_leaves_nothing_beyond_its_time(
    open_house: OpenHouse,
) -> None:
    """Leased ones end at the end of their lease, warm ones soon after the last word; by the clock
    of their own first process, with nobody else there.
    """
    life_s, orphan_s = 3.0, 4.0
    limit = f"[backend]\norphan_s = {orphan_s}\n"
    with open_house(pool="ready = 3, max = 9", more=limit) as house:
        with Sandboxd(url=house.url) as client:
            house.full()
            stock = house.boxes()
            held = [lease(client) for _ in range(3)]
            house.full()
            held[0].exec(f"sleep {2 * orphan_s}")
            # As long as a daemon is there, stock has its word, and what is leased its lease.
            leased = {house.box_of(sandbox.id) for sandbox in held}
            assert leased == stock
            assert house.living() >= leased
            warm = house.living() - leased
            assert len(warm) == 3
            held[0].start("trap '' TERM HUP INT; sleep 1000")
            for sandbox in held:
                sandbox.renew(life_s)
        house.service.kill()
        assert house.living() == leased | warm
        eventually(
            lambda: not house.living() & warm, within_s=orphan_s + 5, what="stock has ended itself"
        )
        eventually(
            lambda: not house.living() and not house.processes(),
            within_s=life_s + GUEST_GRACE_S + 5,
            what="all has ended itself",
        )
