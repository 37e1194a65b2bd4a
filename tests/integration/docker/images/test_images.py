"""Images from a real registry by a real engine: what comes, what does not and whose fault it is."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from pathlib import Path

import pytest

from sandboxd.backends.docker.engine import Engine
from sandboxd.backends.docker.imaging import Login
from sandboxd.wire.codes import ErrorCode, Fault
from tests.integration.docker.images.steps import MIB, images_of, refused
from tests.support.registry import (
    ELSEWHERE,
    PASSWORD,
    USER,
    Front,
    Registry,
    registry,
)
from tests.support.registry import (
    Fault as Wrong,
)

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.timeout(60)]


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


@pytest.mark.requirement("DK-05")
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


@pytest.mark.requirement("DK-05")
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


@pytest.mark.requirement("DK-05")
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


@pytest.mark.requirement("DK-05")
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


async def _machine(engine: Engine) -> str:
    version = await engine.call(engine.api.version)
    return str(version["Arch"])
