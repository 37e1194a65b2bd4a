"""Bug cases LC: whatever its holder does, a sandbox goes when its time is up, and not before."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import docker
import httpx
import pytest

from sandboxd_client import AsyncSandboxd, LeaseEnded, Sandbox, Sandboxd, SandboxdError
from tests.conftest import EngineHost
from tests.contract.cases.houses import House
from tests.contract.cases.times import scaled
from tests.contract.speaker import Speaker, eventually, problem
from tests.support.daemon import RunningDaemon
from tests.support.docker_boxes import load_bare_image

OpenHouse = Callable[..., AbstractContextManager[House]]

SWEEP_S = 5.0


def end_of(client: Sandboxd, sandbox_id: str) -> str | None:
    """For what reason a lease ended; None while it lives."""
    end = client.sandbox(sandbox_id).info().end
    return end.reason if end else None


@pytest.mark.requirement("LC-01")
@pytest.mark.serial
@pytest.mark.timeout(120)
@scaled(1 / 5)
def test_lc_01_a_create_whose_caller_is_cut_off_is_nobody_s_for_long(
    open_house: OpenHouse, scale: float
) -> None:
    chance, life_s, count = random.Random(1), 10 * scale, int(100 * scale)  # noqa: S311
    with open_house(pool="ready = 2, max = 30", template=f"timeout_s = {life_s}") as house:
        house.full()
        moments = [(number, chance.uniform(0, 3 * scale)) for number in range(count)]
        with ThreadPoolExecutor(count) as threads:
            list(threads.map(lambda moment: create_and_leave(house.url, *moment), moments))
        # What was making when its caller went has to be made first, and then lives its time.
        house.empty(within_s=30 + life_s + 2 * SWEEP_S)
        assert len(house.boxes()) == 2
        assert house.other_objects() == []
        assert house.errors() == []


def create_and_leave(url: str, number: int, after_s: float) -> None:
    """Ask for a sandbox, and cut the connection whatever has come by then. Every third asks under
    a key, whose place in the queue is kept for a while.
    """
    key = f', "idempotency_key": "cut-{number}"' if number % 3 == 0 else ""
    body = f'{{"template": "python"{key}}}'
    where = urlsplit(url)
    with socket.create_connection((where.hostname, where.port), timeout=10) as line:
        line.sendall(
            f"POST /v1/sandboxes HTTP/1.1\r\nHost: {where.netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        time.sleep(after_s)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


@pytest.fixture
def bare_image(engine: EngineHost | None, tmp_path: Path) -> str:
    """An image without a single program."""
    if engine is not None:
        with closing(docker.APIClient(base_url=engine.host, version="1.41", timeout=60)) as client:
            return load_bare_image(client)
    root = tmp_path / "bare"
    (root / "bin").mkdir(parents=True)
    return str(root)


_MISSHAPEN = """
[templates.missing]
image = {missing}
pull = "never"
pool = {{ready = 0, max = 10}}
[templates.exits]
image = {image}
setup = ["exit 3"]
pool = {{ready = 0, max = 10}}
[templates.hangs]
image = {image}
setup = ["sleep 600"]
setup_timeout_s = 1
pool = {{ready = 0, max = 10}}
[templates.shell-less]
image = {bare}
setup = ["true"]
pool = {{ready = 0, max = 10}}
"""
_WHY = {
    "missing": "nope",
    "exits": "exited with 3",
    "hangs": "`setup_timeout_s` were over",
    "shell-less": "/bin/sh",
}


@pytest.mark.requirement("LC-02")
@pytest.mark.serial
@pytest.mark.timeout(180)
def test_lc_02_what_cannot_become_a_sandbox_says_why_and_leaves_nothing(
    open_house: OpenHouse, engine: EngineHost | None, bare_image: str
) -> None:
    templates = _MISSHAPEN.format(
        image=json.dumps(engine.image if engine else "host"),
        missing=json.dumps("sandboxd/nope:1" if engine else "/nope"),
        bare=json.dumps(bare_image),
    )
    with (
        open_house(pool="ready = 0, max = 2", more=templates) as house,
        Sandboxd(url=house.url) as client,
        ThreadPoolExecutor(40) as threads,
    ):

        def refusal(template: str) -> tuple[SandboxdError, float]:
            began = time.monotonic()
            with pytest.raises(SandboxdError) as caught:
                client.lease(template, wait_timeout_s=60)
            return caught.value, time.monotonic() - began

        wanted = [template for template in _WHY for _ in range(10)]
        for template, (error, took_s) in zip(wanted, threads.map(refusal, wanted), strict=True):
            assert _WHY[template] in str(error)
            code = "image_unavailable" if template == "missing" else "start_failed"
            assert (error.code, error.fault, error.mask) == (code, "task", True), str(error)
            assert took_s < 60 + 10
        eventually(lambda: house.boxes() == set(), within_s=15, what="nothing is left of them")
        assert client.lease("python", wait_timeout_s=30).exec("echo fine").stdout == "fine\n"


_TRAINER = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from sandboxd_client import Sandboxd
url, way, life_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
client = Sandboxd(url=url)
options = {"run_id": "lc-03"} if way == "run" else {}
with client.run("lc-03", ttl_s=life_s) if options else nullcontext():
    with ThreadPoolExecutor(20) as threads:
        lease = lambda _: client.lease("python", wait_timeout_s=50, **options)
        held = list(threads.map(lease, range(20)))
    for sandbox in held:
        if not options:
            sandbox.renew(life_s)
    print(*(sandbox.id for sandbox in held), flush=True)
    time.sleep(600)
"""


@pytest.mark.requirement("LC-03")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("way", "reason"), [("lease", "expired"), ("run", "run_lost")])
def test_lc_03_what_a_killed_client_held_is_gone_after_its_time(
    open_house: OpenHouse, way: str, reason: str
) -> None:
    """By the clock of each lease, or by the heartbeat of the run that they belong to."""
    life_s = 4.0
    with open_house(pool="ready = 2, max = 30") as house, Sandboxd(url=house.url) as client:
        trainer = subprocess.Popen(
            [sys.executable, "-c", _TRAINER, house.url, way, str(life_s)],
            stdout=subprocess.PIPE,
            env=house.service.environ,
            text=True,
        )
        assert trainer.stdout is not None
        with trainer.stdout:
            held = trainer.stdout.readline().split()
            trainer.kill()
            trainer.wait()
        assert len(set(held)) == 20
        house.empty(within_s=life_s + SWEEP_S)
        assert len(house.boxes()) == 2
        assert {end_of(client, sandbox_id) for sandbox_id in held} == {reason}


@pytest.mark.requirement("LC-05")
@pytest.mark.timeout(150)
@scaled(1 / 5)
def test_lc_05_who_works_quietly_is_not_idle(daemon: RunningDaemon, scale: float) -> None:
    """By a call that waits, in the background, over a stream, in a shell."""
    text, idle_s = f"sleep {40 * scale:g}; echo ok", 10 * scale

    def in_shell(sandbox: Sandbox) -> str:
        return sandbox.shell().run(text).stdout

    def streamed(sandbox: Sandbox) -> str:
        *_, last = sandbox.stream(text)
        return sandbox.process(last.result.exec_id).info().stdout  # type: ignore[union-attr]

    def in_background(sandbox: Sandbox) -> str:
        process = sandbox.start(text)
        time.sleep(40 * scale + idle_s / 2)  # nobody so much as asks
        return process.info().stdout

    ways = [lambda sandbox: sandbox.exec(text).stdout, in_background, streamed, in_shell]
    with (
        Sandboxd(url=daemon.url) as client,
        ThreadPoolExecutor(len(ways)) as threads,
        ExitStack() as stack,
    ):
        held = [client.lease("python", idle_timeout_s=idle_s) for _ in ways]
        for sandbox in held:
            stack.enter_context(sandbox)
        assert list(threads.map(lambda way, box: way(box), ways, held)) == ["ok\n"] * len(ways)
        ended = time.monotonic()
        eventually(
            lambda: {end_of(client, sandbox.id) for sandbox in held} == {"idle"},
            within_s=idle_s + SWEEP_S,
            what="all are idle once their work is over",
        )
        assert time.monotonic() - ended > idle_s / 3, "the clock began with the end of the work"


@pytest.mark.requirement("LC-07")
@pytest.mark.timeout(90)
def test_lc_07_a_sandbox_that_nobody_uses_goes_when_its_time_is_up(open_house: OpenHouse) -> None:
    with (
        open_house(pool="ready = 2, max = 30") as house,
        Sandboxd(url=house.url) as client,
    ):
        held = [client.lease("python") for _ in range(10)]
        for sandbox in held:
            sandbox.renew(5)
        house.empty(within_s=5 + SWEEP_S)
        assert {end_of(client, sandbox.id) for sandbox in held} == {"expired"}
        assert len(house.boxes()) == 2


@pytest.mark.requirement("LC-09")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_lc_09_a_name_is_free_again_at_once(open_house: OpenHouse, count: int) -> None:
    """Also where the house has room for one, so that the next one waits for the last to be gone."""
    name = {"rollout_id": "r-1", "labels": {"name": "task-1"}}
    with open_house(pool="ready = 0, max = 1") as house, Sandboxd(url=house.url) as client:
        seen = set()
        for number in range(count):
            sandbox = client.lease("python", wait_timeout_s=30, **name)  # type: ignore[arg-type]
            seen.add(sandbox.id)
            assert sandbox.exec("ls -A; cat /tmp/mark; env").stdout.count("mark") == 0
            sandbox.exec(f"echo {number} > mark; cp mark /tmp/mark")
            if number % 2:
                sandbox.release()
            else:
                assert client.release(labels={"name": "task-1"}).failed == []
        assert len(seen) == count


@pytest.mark.requirement("LC-10")
@pytest.mark.anyio
async def test_lc_10_a_handle_that_is_started_twice_holds_one_sandbox(
    daemon: RunningDaemon,
) -> None:
    async with AsyncSandboxd(url=daemon.url) as client:
        handle = client.lease("python", run_id="lc-10")
        first = await handle
        assert await handle is first
        async with handle as again, first, handle:
            assert again is first
            assert [info.id for info in await client.sandboxes(run_id="lc-10")] == [first.id]
        with pytest.raises(LeaseEnded):
            await first.exec("true")
        for _ in range(10):  # a reset gives back and takes anew
            await first.release()
            first = await client.lease("python", run_id="lc-10")
        await first.release()
        await first.release()
        assert await client.sandboxes(run_id="lc-10") == []


@pytest.mark.requirement("LC-10")
def test_lc_10_a_handle_of_the_twin_that_is_entered_twice_holds_one_sandbox(
    daemon: RunningDaemon,
) -> None:
    with Sandboxd(url=daemon.url) as client:
        with client.lease("python", run_id="lc-10-s") as sandbox, sandbox as again:
            assert again is sandbox
        with sandbox, pytest.raises(LeaseEnded):
            sandbox.exec("true")
        assert client.sandboxes(run_id="lc-10-s") == []


@pytest.mark.requirement("LC-12")
@pytest.mark.serial
@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_lc_12_releases_succeed_many_at_once_and_for_what_is_gone(
    open_house: OpenHouse, count: int
) -> None:
    with (
        open_house(pool=f"ready = 0, max = {count + 5}, starting = 8") as house,
        httpx.Client(base_url=house.url, timeout=120) as http,
        ThreadPoolExecutor(min(count, 100)) as threads,
    ):

        def lease(_: int) -> Speaker:
            body = {"template": "python", "wait_timeout_s": 110}
            made = http.post("/v1/sandboxes", json=body)
            assert made.status_code == 201, made.text
            return Speaker(http, f"/v1/sandboxes/{made.json()['id']}")

        *many, twice, by_hand = threads.map(lease, range(count + 2))
        house.remove(house.box_of(by_hand.path.rsplit("/", 1)[1]))
        began = time.monotonic()
        told = list(threads.map(lambda one: http.delete(one.path), [*many, twice, twice, by_hand]))
        assert {answer.status_code for answer in told} == {200}
        house.empty(within_s=60)
        assert house.boxes() == set()
        assert time.monotonic() - began < 60
        for one in (twice, by_hand):
            assert http.delete(one.path).status_code == 200
        problem(http.delete("/v1/sandboxes/sbx-nobody"), 404, "not_found")
        complaints = [line for line in house.errors() if "disposed" not in line]
        assert complaints == []
        assert len(house.service.log.read_text().splitlines()) < 10 * count


@pytest.mark.requirement("LC-13")
@pytest.mark.parametrize("signals", [[9, 15], [n for n in range(1, 65) if n not in (32, 33)]])
def test_lc_13_the_first_process_cannot_be_ended_from_inside(
    sandbox: Speaker, signals: list[int]
) -> None:
    """Not by the two of old, nor by any other."""
    for number in signals:
        sandbox.exec(["python3", "-c", f"import os; os.kill(1, {number})"])
    assert sandbox.exec("echo alive")["stdout"] == "alive\n"
    assert sandbox.get().json()["end"] is None
