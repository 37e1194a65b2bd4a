"""The pool: each lease has a sandbox of its own, fresh and working, and short calls never wait."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any

import anyio
import httpx
import pytest

from tests.conftest import EngineHost
from tests.contract.cases.houses import House
from tests.contract.speaker import Speaker, eventually, held
from tests.contract.test_attach import attach, take

pytestmark = pytest.mark.timeout(120)

OpenHouse = Callable[..., AbstractContextManager[House]]
_LONG = [pytest.mark.slow, pytest.mark.timeout(1200)]
_SHORT_CALL_S = 2.0
_HEALTH_S = 0.5
_CALL_S = 3.0
_BACK_S = 30.0  # until what a load took is let go of
_NOISE = 10  # descriptors, threads and connections that come and go by themselves
_BROKEN = """
[templates.broken]
image = {image}
pull = "never"
pool = {{ready = 0, max = 2}}
"""
# Everywhere that a rollout may leave something, and a way to say what is there.
_TRACES = ("/tmp/left", "/dev/shm/left", "$HOME/left", "/etc/left", "/var/tmp/left")
# What its user may not write is left out: the host's own folders, on the local backend.
_LEAVE = """
for place in {places} /usr/local/left "$(python3 -m site --user-site)/left.py" \\
    "$(python3 -c 'import site; print(site.getsitepackages()[0])')/left.py"; do
    mkdir -p "$(dirname "$place")" && echo 'left = 1' > "$place"
done
mkdir -p /var/spool/cron/crontabs && echo '* * * * * left' > /var/spool/cron/crontabs/root
cp -f /bin/true /usr/bin/env.new && mv -f /usr/bin/env.new /usr/bin/env
setsid sh -c 'sleep 100000 & sleep 100001' >/dev/null 2>&1 &
exit 0
"""
_LOOK = """
ls -d {places} /usr/local/left /var/spool/cron/crontabs/root 2>/dev/null
python3 -c 'import left' 2>/dev/null && echo module
/usr/bin/env echo same | grep -qx same || echo env
cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o 'sleep 10000[01]'
exit 0
"""


def counts(
    names: str, *, light: tuple[float, ...], real: tuple[float, ...]
) -> pytest.MarkDecorator:
    """A small load in every run, and the real one in the long run; nothing else differs."""
    values = [pytest.param(*light, id="light"), pytest.param(*real, id="real", marks=_LONG)]
    return pytest.mark.parametrize(names, values)


async def at_once(count: int, call: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """That many calls side by side."""
    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(call, number)


def client_of(url: str) -> httpx.AsyncClient:
    """A caller with as many connections as it wants."""
    return httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=None))


async def leased(http: httpx.AsyncClient, **more: Any) -> str:
    """A lease: its path."""
    response = await http.post("/v1/sandboxes", json={"template": "python", **more})
    assert response.status_code == 201, response.text
    return f"/v1/sandboxes/{response.json()['id']}"


async def said(http: httpx.AsyncClient, path: str, cmd: str, **more: Any) -> str:
    """What a command wrote, which went well."""
    response = await http.post(f"{path}/execs", json={"cmd": cmd, **more})
    assert response.status_code == 200, response.text
    assert response.json()["exit_code"] == 0, response.text
    return str(response.json()["stdout"])


@pytest.mark.anyio
@pytest.mark.requirement("PL-01")
@counts("count, ready, pause_s", light=(60, 12, 0.25), real=(500, 50, 5.0))
async def test_pl_01_every_lease_has_a_sandbox_that_is_nobody_elses(
    open_house: OpenHouse, count: int, ready: int, pause_s: float
) -> None:
    with open_house(pool=f"ready = {ready}, max = {3 * ready}") as house:
        house.full()
        boxes: dict[str, str] = {}
        async with client_of(house.url) as http:

            async def use(_number: int) -> None:
                path = await leased(http, wait_timeout_s=600)
                await said(http, path, f"echo {path} >> /tmp/me")
                read = await said(http, path, f"sleep {pause_s}; cat /tmp/me")
                assert read == f"{path}\n"
                boxes[path] = await anyio.to_thread.run_sync(house.box_of, path.split("/")[-1])
                await http.delete(path)

            await at_once(count, use)
        assert len(boxes) == len(set(boxes.values())) == count


@pytest.mark.requirement("PL-02")
@counts("count", light=(30,), real=(300,))
def test_pl_02_the_first_call_of_a_lease_works(open_house: OpenHouse, count: int) -> None:
    with (
        open_house(pool="ready = 4, max = 12") as house,
        httpx.Client(base_url=house.url, timeout=60) as http,
    ):
        for number in range(count):
            body = http.post("/v1/sandboxes", json={"template": "python"}).json()
            sandbox = Speaker(http, f"/v1/sandboxes/{body['id']}")
            if number % 2:
                assert sandbox.exec("echo here")["stdout"] == "here\n"
            written = http.put(f"{sandbox.path}/files", params={"path": "a"}, content=b"1")
            assert written.status_code == 201, written.text
            assert sandbox.exec("cat a")["stdout"] == "1"
            assert http.delete(sandbox.path).status_code == 200
        assert house.errors() == []


@pytest.mark.requirement("PL-05")
@counts("count", light=(12,), real=(100,))
def test_pl_05_nothing_of_a_lease_is_in_a_later_one(
    open_house: OpenHouse, engine: EngineHost | None, count: int
) -> None:
    places = " ".join(f'"{place}"' for place in _TRACES)
    look = _LOOK.format(places=places)
    with (
        open_house(pool="ready = 3, max = 12") as house,
        httpx.Client(base_url=house.url, timeout=60) as http,
    ):

        def lease() -> Speaker:
            body = http.post("/v1/sandboxes", json={"template": "python"}).json()
            return Speaker(http, f"/v1/sandboxes/{body['id']}")

        first = lease()
        assert first.exec(["bash", "-c", look])["stdout"] == ""
        assert first.exec(["bash", "-c", _LEAVE.format(places=places)])["exit_code"] == 0
        found = first.exec(["bash", "-c", look])["stdout"]
        everywhere = ("/etc/left", "/usr/local/left", "crontabs", "env") if engine else ()
        for trace in ("/tmp/left", "/dev/shm/left", "module", "sleep 100000", *everywhere):
            assert trace in found, found
        used = {house.box_of(first.path.split("/")[-1])}
        http.delete(first.path)
        for _ in range(count):
            later = lease()
            assert later.exec(["bash", "-c", look])["stdout"] == ""
            used.add(house.box_of(later.path.split("/")[-1]))
            http.delete(later.path)
        assert len(used) == count + 1


@pytest.mark.requirement("PL-07")
def test_pl_07_an_open_terminal_and_a_long_command_hold_up_nothing(sandbox: Speaker) -> None:
    terminal = sandbox.start(["sh"], tty={"rows": 24, "cols": 80}, env={"PS1": "> "})
    long = sandbox.start("sleep 60")
    with attach(sandbox, terminal) as socket:
        take(socket, b"> ")

        def short(call: Callable[[], httpx.Response], status: int = 200) -> None:
            began = time.monotonic()
            assert call().status_code == status
            assert time.monotonic() - began < _SHORT_CALL_S

        def put() -> httpx.Response:
            return sandbox.http.put(f"{sandbox.path}/files", params={"path": "a"}, content=b"1")

        for written in (201, 200, 200):
            short(lambda: sandbox.post("/execs", {"cmd": "true"}))
            short(put, written)
            short(lambda: sandbox.get("/files", path="a"))
            short(sandbox.get)
            short(lambda: sandbox.get(f"/execs/{long}"))
        short(lambda: sandbox.post(f"/execs/{long}/signal", {"signal": "KILL"}))
        began = time.monotonic()
        assert sandbox.ended(long)["outcome"] == "killed"
        assert time.monotonic() - began < _SHORT_CALL_S
        socket.send(b"\0echo on\n")
        take(socket, b"\non\r\n> ")


@pytest.mark.anyio
@pytest.mark.serial
@pytest.mark.requirement("PL-09")
@counts("count, pause_s", light=(60, 6), real=(400, 30))
async def test_pl_09_hundreds_of_waiting_calls_hold_up_no_short_one(
    open_house: OpenHouse, count: int, pause_s: float
) -> None:
    with open_house(pool="ready = 10, max = 16") as house:
        house.full()
        waiting = 0
        async with client_of(house.url) as http:
            paths = [await leased(http) for _ in range(8)]
            spare = [await leased(http) for _ in range(2)]

            async def wait(number: int) -> None:
                nonlocal waiting
                path = paths[number % len(paths)]
                waiting += 1
                await said(http, path, f"sleep {pause_s}")
                waiting -= 1

            async def within(limit_s: float, call: Awaitable[Any]) -> None:
                began = anyio.current_time()
                await call
                assert anyio.current_time() - began < limit_s

            async def all_run() -> bool:
                shown = [(await http.get(f"{path}/execs")).json()["execs"] for path in paths]
                return sum(len(execs) for execs in shown) == count

            async with anyio.create_task_group() as tasks:
                for number in range(count):
                    tasks.start_soon(wait, number)
                with anyio.fail_after(pause_s):
                    while not await all_run():  # noqa: ASYNC110 - they are in other hands
                        await anyio.sleep(0.1)
                for _ in range(5):
                    await within(_HEALTH_S, http.get("/healthz"))
                    await within(_CALL_S, http.get(paths[0]))
                    await within(_CALL_S, said(http, paths[0], "echo here"))
                for path in spare:
                    await within(_CALL_S, http.delete(path))
                assert waiting == count  # else this was no load
        assert waiting == 0


@pytest.mark.anyio
@pytest.mark.serial
@pytest.mark.requirement("PL-10")
@counts("execs, streams, creates", light=(300, 40, 12), real=(5000, 500, 200))
async def test_pl_10_calls_leave_no_descriptor_thread_or_connection(
    open_house: OpenHouse, backend: str, execs: int, streams: int, creates: int
) -> None:
    nowhere = '"sandboxd/nope:1"' if backend == "docker" else '"/nope"'
    with open_house(pool="ready = 2, max = 8", more=_BROKEN.format(image=nowhere)) as house:
        house.full()
        async with client_of(house.url) as http:
            paths = [await leased(http) for _ in range(2)]
            await at_once(32, lambda number: half_read(http, paths[number % 2]))
            house.full()
        before = held(house.service.pid)
        async with client_of(house.url) as http:
            turns = anyio.Semaphore(32)

            async def run(number: int) -> None:
                async with turns:
                    await said(http, paths[number % 2], "true")

            async def stream(number: int) -> None:
                async with turns:
                    await half_read(http, paths[number % 2])

            async def fail(_number: int) -> None:
                async with turns:
                    answer = await http.post("/v1/sandboxes", json={"template": "broken"})
                    assert answer.status_code in {424, 502}, answer.text

            await at_once(execs, run)
            await at_once(streams, stream)
            await at_once(creates, fail)

        def is_back() -> bool:
            pairs = zip(held(house.service.pid), before, strict=True)
            return all(now <= then + _NOISE for now, then in pairs)

        eventually(is_back, within_s=_BACK_S, what=f"as before: {before}")


async def half_read(http: httpx.AsyncClient, path: str) -> None:
    """Begin to read a stream that has much more to say, and go away."""
    async with http.stream(
        "POST",
        f"{path}/execs",
        json={"cmd": "yes | head -c 4000000", "timeout_s": 60},
        headers={"Accept": "application/x-ndjson"},
    ) as response:
        assert response.status_code == 200
        async for _piece in response.aiter_bytes():
            break


@pytest.mark.requirement("PL-13")
@counts("rounds", light=(5,), real=(20,))
def test_pl_13_a_warm_sandbox_that_died_is_not_handed_out(
    open_house: OpenHouse, rounds: int
) -> None:
    with (
        open_house(pool="ready = 4, max = 12") as house,
        httpx.Client(base_url=house.url, timeout=60) as http,
    ):
        for _ in range(rounds):
            house.full(within_s=60)
            warm = house.living()
            for box_id in warm:
                house.kill(box_id)
            body = http.post("/v1/sandboxes", json={"template": "python"}).json()
            sandbox = Speaker(http, f"/v1/sandboxes/{body['id']}")
            assert sandbox.exec("echo here")["stdout"] == "here\n"
            assert house.box_of(body["id"]) not in warm
            eventually(
                lambda warm=warm: not warm & house.boxes(),  # type: ignore[misc]
                within_s=30,
                what="the dead ones are gone",
            )
            http.delete(sandbox.path)
        house.full(within_s=60)
