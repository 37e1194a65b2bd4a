"""Images from a real registry by a real engine: what comes, what fails by whom, what goes."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from sandboxd.backends.docker.engine import Engine, open_engine
from sandboxd.backends.docker.imaging import DockerImages, ImageSettings, Login, open_images
from sandboxd.backends.protocol import ImageState
from sandboxd.errors import SandboxdError
from sandboxd.model.template import Pull
from sandboxd.wire.codes import ErrorCode, Fault
from tests.conftest import EngineHost
from tests.support.registry import (
    ELSEWHERE,
    PASSWORD,
    USER,
    Front,
    Registry,
    front_of,
    missing,
    registry,
)
from tests.support.registry import (
    Fault as Wrong,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.docker,
    pytest.mark.timeout(60),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

MIB = 1 << 20


@pytest.fixture
async def engine(engine_host: EngineHost) -> AsyncIterator[Engine]:
    """The tests' engine, from which every image of a loopback registry is taken away again."""
    opened = await open_engine(engine_host.host)
    try:
        yield opened
    finally:
        await to_thread.run_sync(_clear, opened)
        await opened.aclose()


def _clear(engine: Engine) -> None:
    for image in engine.api.images(all=True):
        names = [*(image["RepoTags"] or ()), *(image["RepoDigests"] or ())]
        if any(name.startswith("127.0.0.1:") for name in names):
            engine.api.remove_image(image["Id"], force=True)


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Registry]:
    """A registry that anybody may read."""
    (tmp_path / "shop").mkdir()
    async with registry(tmp_path / "shop") as running:
        yield running


@pytest.fixture
async def front(shop: Registry) -> AsyncIterator[Front]:
    """A front of it, in which things go wrong."""
    async with front_of(shop) as running:
        yield running


@asynccontextmanager
async def images_of(
    engine: Engine, place: Path, *, logins: dict[str, Login] | None = None, **more: float
) -> AsyncIterator[DockerImages]:
    settings = ImageSettings(
        directory=place / "docker",
        installation="tests",
        logins=logins or {},
        disk_mb=int(more.get("disk_mb", 0)),
        stall_s=more.get("stall_s", 30.0),
    )
    async with open_images(engine, settings) as images:
        yield images


async def refused(images: DockerImages, reference: str, *, pull: Pull = "missing") -> SandboxdError:
    """The error of an image that cannot be had, which must come soon."""
    with anyio.fail_after(15), pytest.raises(SandboxdError) as caught:
        await images.ensure(reference, pull=pull)
    return caught.value


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(15):
        while not condition():  # noqa: ASYNC110 - an engine sends no events of this
            await anyio.sleep(0.01)


async def test_an_image_comes_with_its_facts(
    engine: Engine, shop: Registry, tmp_path: Path
) -> None:
    digest = await shop.push("tools/agent", tag="v1", user="agent", env=("A=1",))
    async with images_of(engine, tmp_path) as images:
        facts = await images.ensure(f"{shop.address}/tools/agent:v1", pull="missing")
        assert (facts.user, facts.env, facts.digest) == ("agent", ("A=1",), digest)
        again = await images.ensure(f"{shop.address}/tools/agent@{digest}", pull="never")
        assert again.image_id == facts.image_id
        by_id = await images.ensure(facts.image_id, pull="missing")
        assert by_id.image_id == facts.image_id


@pytest.mark.parametrize("rest", ["nothing", "small:nothing", f"small@sha256:{'0' * 64}"])
async def test_what_the_registry_does_not_have_is_the_tasks_fault_and_stops_no_other_image(
    engine: Engine, shop: Registry, tmp_path: Path, rest: str
) -> None:
    await shop.push("small")
    async with images_of(engine, tmp_path) as images:
        error = await refused(images, f"{shop.address}/{rest}")
        assert (error.code, error.fault, error.status) == (
            ErrorCode.IMAGE_UNAVAILABLE,
            Fault.TASK,
            424,
        )
        assert f"{shop.address}/{rest}" in error.detail
        assert error.details["cause"] == "missing"
        await images.ensure(f"{shop.address}/small", pull="missing")


@pytest.mark.parametrize(
    "reference",
    ["$(touch /tmp/PWN)", "a;b", "--privileged", "-v/:/h", "Upper", "a:b:c", "a\nb", ""],
)
async def test_what_is_no_reference_never_reaches_the_engine(
    engine: Engine, tmp_path: Path, reference: str
) -> None:
    async with images_of(engine, tmp_path) as images:
        error = await refused(images, reference)
        assert (error.code, error.fault) == (ErrorCode.IMAGE_UNAVAILABLE, Fault.TASK)
        assert "is no image reference" in error.detail


async def test_an_image_for_another_machine_is_refused_with_both_named(
    engine: Engine, shop: Registry, tmp_path: Path
) -> None:
    digest = await shop.push("foreign", architecture=ELSEWHERE)
    await shop.push_list("foreign", digest, architecture=ELSEWHERE)
    async with images_of(engine, tmp_path) as images:
        error = await refused(images, f"{shop.address}/foreign")
        assert (error.code, error.fault) == (ErrorCode.IMAGE_UNAVAILABLE, Fault.TASK)
        assert f"linux/{ELSEWHERE}" in error.detail
        assert f"linux/{(await _machine(engine))}" in error.detail
        error = await refused(images, f"{shop.address}/foreign:list")
        assert (error.fault, error.details["cause"]) == (Fault.TASK, "platform")


async def test_contents_that_are_not_what_the_digest_says_are_refused(
    engine: Engine, shop: Registry, front: Front, tmp_path: Path
) -> None:
    await shop.push("spoilt", files={"data": os.urandom(MIB)})
    front.rule = lambda _, path: Wrong(flip=True) if "/blobs/" in path else None
    async with images_of(engine, tmp_path) as images:
        error = await refused(images, f"{front.address}/spoilt")
        assert (error.fault, error.details["cause"]) == (Fault.TASK, "digest")


async def test_a_registry_that_is_down_or_broken_is_not_the_tasks_fault(
    engine: Engine, front: Front, tmp_path: Path
) -> None:
    front.rule = lambda _method, _path: Wrong(status=500)
    async with images_of(engine, tmp_path) as images:
        for address in (front.address, "127.0.0.1:1"):
            error = await refused(images, f"{address}/small")
            assert (error.code, error.fault) == (ErrorCode.IMAGE_UNAVAILABLE, Fault.INFRA)
            assert error.mask


async def test_a_private_image_needs_credentials_and_they_show_nowhere(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "nobody"))
    (tmp_path / "private").mkdir()
    password = tmp_path / "password"
    async with registry(tmp_path / "private", private=True) as private:
        await private.push("hidden")
        reference = f"{private.address}/hidden"
        async with images_of(engine, tmp_path) as images:
            error = await refused(images, reference)
            assert (error.fault, error.details["cause"]) == (Fault.TASK, "denied")
            assert "backend.docker.registries" in error.detail
        logins = {private.address: Login(username=USER, password_file=password)}
        async with images_of(engine, tmp_path, logins=logins) as images:
            error = await refused(images, reference)
            assert error.fault is Fault.INFRA  # there is no such file
            assert str(password) in error.detail
            password.write_text("wr0ng-s3cret")
            error = await refused(images, reference)
            assert error.details["cause"] == "denied"
            told = [error.detail, *(image.error for image in await images.list_images())]
            assert "wr0ng-s3cret" not in "".join(told)
            password.write_text(f"{PASSWORD}\n")  # read anew
            await images.ensure(reference, pull="missing")
    assert PASSWORD not in (tmp_path / "docker/images.json").read_text()


async def test_the_docker_configuration_of_our_user_counts_where_ours_says_nothing(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "private").mkdir()
    async with registry(tmp_path / "private", private=True) as private:
        await private.push("hidden")
        login = {"auth": b64encode(f"{USER}:{PASSWORD}".encode()).decode()}
        config = {"auths": {private.address: login}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        async with images_of(engine, tmp_path) as images:
            await images.ensure(f"{private.address}/hidden", pull="missing")


async def test_pull_says_when_the_registry_is_asked(
    engine: Engine, shop: Registry, tmp_path: Path
) -> None:
    await shop.push("moving")
    reference = f"{shop.address}/moving"
    async with images_of(engine, tmp_path) as images:
        error = await refused(images, reference, pull="never")
        assert error.fault is Fault.TASK
        assert "never" in error.detail
        first = await images.ensure(reference, pull="missing")
        await shop.push("moving")
        assert await images.ensure(reference, pull="missing") == first
        assert await images.ensure(reference, pull="never") == first
        second = await images.ensure(reference, pull="always")
        assert second.image_id != first.image_id


async def test_many_who_want_an_image_get_one_pull_that_outlives_who_gave_up(
    engine: Engine, shop: Registry, front: Front, tmp_path: Path
) -> None:
    await shop.push("wanted", files={"data": os.urandom(MIB)})
    front.rule = lambda _, path: Wrong(stall_after=1000) if "/blobs/" in path else None
    got: list[str] = []
    async with images_of(engine, tmp_path) as images:

        async def want() -> None:
            facts = await images.ensure(f"{front.address}/wanted", pull="missing")
            got.append(facts.image_id)

        async with anyio.create_task_group() as patient, anyio.create_task_group() as impatient:
            impatient.start_soon(want)
            await until(lambda: front.count("/blobs/") > 0)
            for _ in range(30):
                patient.start_soon(want)
            listed = await images.list_images()
            assert [image.state for image in listed] == [ImageState.PULLING]
            impatient.cancel_scope.cancel()
            front.rule = lambda _method, _path: None
            front.release.set()
    assert len(got) == 30
    assert len(set(got)) == 1
    assert front.count("GET /v2/wanted/manifests/") <= 2  # by tag and by digest, for one pull


async def test_a_registry_is_asked_for_two_images_at_once(
    engine: Engine, shop: Registry, front: Front, tmp_path: Path
) -> None:
    names = [f"one-{number}" for number in range(5)]
    for name in names:
        await shop.push(name)
    front.rule = lambda _, path: Wrong(stall_after=0) if "/blobs/" in path else None

    def begun() -> int:
        return sum(front.count(f"/v2/{name}/manifests/") > 0 for name in names)

    async with images_of(engine, tmp_path) as images, anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(images.prefetch, f"{front.address}/{name}")
        await until(lambda: begun() == 2)
        assert [image.state for image in await images.list_images()] == [ImageState.PULLING] * 5
        assert begun() == 2
        front.release.set()
        front.rule = lambda _method, _path: None
    assert begun() == 5


async def test_a_registry_that_wants_fewer_requests_is_asked_again_later(
    engine: Engine, shop: Registry, front: Front, tmp_path: Path
) -> None:
    await shop.push("popular")
    busy = Wrong(
        status=429,
        headers=("Retry-After: 1",),
        body=b'{"errors": [{"code": "TOOMANYREQUESTS", "message": "Retry-After: 1"}]}',
    )
    asked = 0

    def rule(_method: str, path: str) -> Wrong | None:
        nonlocal asked
        asked += "/manifests/" in path
        return busy if "/manifests/" in path and asked <= 4 else None

    front.rule = rule
    async with images_of(engine, tmp_path) as images:
        with anyio.fail_after(30):
            await images.ensure(f"{front.address}/popular", pull="missing")
    assert asked > 4


async def test_a_pull_without_progress_is_given_up_and_the_engine_lets_go(
    engine: Engine, shop: Registry, front: Front, tmp_path: Path
) -> None:
    await shop.push("slow", files={"data": os.urandom(3 * MIB)})
    front.rule = lambda _, path: Wrong(stall_after=MIB) if "/blobs/" in path else None
    async with images_of(engine, tmp_path, stall_s=1) as images:
        error = await refused(images, f"{front.address}/slow")
        assert (error.fault, error.details["cause"]) == (Fault.INFRA, "stalled")
        (listed,) = await images.list_images()
        assert (listed.state, listed.error) == (ImageState.FAILED, error.detail)


async def test_leaving_ends_a_pull_that_is_under_way_and_tells_who_waits(
    engine: Engine, shop: Registry, front: Front, tmp_path: Path
) -> None:
    await shop.push("slow", files={"data": os.urandom(MIB)})
    front.rule = lambda _, path: Wrong(stall_after=1000) if "/blobs/" in path else None
    told: list[SandboxdError] = []
    with anyio.fail_after(10):
        # The task that waits outlives the images.
        async with anyio.create_task_group() as tasks:  # noqa: SIM117
            async with images_of(engine, tmp_path) as images:

                async def wait() -> None:
                    with pytest.raises(SandboxdError) as caught:
                        await images.ensure(f"{front.address}/slow", pull="missing")
                    told.append(caught.value)

                tasks.start_soon(wait)
                await until(lambda: front.count("/blobs/") > 0)
    assert [error.code for error in told] == [ErrorCode.BACKEND_UNAVAILABLE]


async def test_over_its_budget_the_longest_unused_goes(
    engine: Engine, shop: Registry, tmp_path: Path
) -> None:
    names = await _push_some(shop, "old", "middle", "new")
    async with images_of(engine, tmp_path, disk_mb=2) as images:
        ids = [(await images.ensure(name, pull="missing")).image_id for name in names[:2]]
        await images.ensure(names[0], pull="missing")  # used again: now `middle` is the oldest
        ids.append((await images.ensure(names[2], pull="missing")).image_id)
        await images.tidy()
        assert await _here(engine, ids) == [True, False, True]
        states = {image.reference: image.state for image in await images.list_images()}
        assert set(states) == {f"{names[0]}:latest", f"{names[2]}:latest"}


async def test_what_is_used_or_wanted_or_somebody_elses_never_goes(
    engine: Engine, shop: Registry, tmp_path: Path
) -> None:
    names = await _push_some(shop, "contained", "making", "stocked", "tagged", "before", "spare")
    await to_thread.run_sync(engine.api.pull, names[4])
    async with images_of(engine, tmp_path, disk_mb=1) as images:
        images.wanted_by(lambda: {names[2]: True, names[5]: False})
        async with anyio.create_task_group() as tasks, _container(engine) as contain:
            ids = []
            for name in names:
                done = anyio.Event()

                async def use(name: str = name, done: anyio.Event = done) -> None:
                    async with images.using(name, pull="missing") as facts:
                        ids.append(facts.image_id)
                        done.set()
                        await anyio.sleep_forever()

                tasks.start_soon(use)
                await done.wait()
            await contain(ids[0])
            await to_thread.run_sync(engine.api.tag, ids[3], "127.0.0.1:9/theirs", "latest")
            assert await images.tidy() == []
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                async with images.using(names[1], pull="never"):
                    assert await images.tidy() == [ids[5]]
                assert await _here(engine, ids) == [True] * 5 + [False]


async def test_what_we_pulled_is_known_after_a_restart_and_a_lost_ledger_drops_nothing(
    engine: Engine, shop: Registry, tmp_path: Path
) -> None:
    names = await _push_some(shop, "old", "new")
    async with images_of(engine, tmp_path) as images:
        ids = [(await images.ensure(name, pull="missing")).image_id for name in names]
    ledger = tmp_path / "docker" / "images.json"
    kept = ledger.read_text()
    for broken in ("", "{}", "[]", '{"version": 1, "images": [{}]}', kept[:-9]):
        ledger.write_text(broken)
        async with images_of(engine, tmp_path, disk_mb=1) as images:
            await images.tidy()
        assert await _here(engine, ids) == [True, True]
    ledger.write_text(kept)
    async with images_of(engine, tmp_path, disk_mb=1) as images:
        await images.tidy()
        assert await _here(engine, ids) == [False, True]


async def _push_some(shop: Registry, *names: str) -> list[str]:
    """Push images of a bit over 0.9 MiB; their references."""
    for name in names:
        await shop.push(name, files={"data": os.urandom(900_000)})
    return [f"{shop.address}/{name}" for name in names]


async def _here(engine: Engine, ids: list[str]) -> list[bool]:
    listed = await engine.call(engine.api.images, all=True)
    present = {image["Id"] for image in listed}
    return [image_id in present for image_id in ids]


@asynccontextmanager
async def _container(engine: Engine) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
    """Containers of somebody else, never started."""
    made: list[str] = []

    async def contain(image_id: str) -> None:
        made.append((await engine.call(engine.api.create_container, image_id, "/x"))["Id"])

    try:
        yield contain
    finally:
        with anyio.CancelScope(shield=True):
            for container in made:
                await engine.call(engine.api.remove_container, container, force=True)


async def _machine(engine: Engine) -> str:
    version = await engine.call(engine.api.version)
    return str(version["Arch"])
