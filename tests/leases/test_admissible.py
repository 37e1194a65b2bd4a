"""A caller may differ from its template, but not see the machine's files nor ask for its all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sandboxd.backends.protocol import Capabilities
from sandboxd.errors import SandboxdError
from sandboxd.leases.admissible import check_spec, check_user
from sandboxd.model.template import BoxSpec, Resources
from sandboxd.wire.codes import ErrorCode

pytestmark = pytest.mark.anyio

TEMPLATE = BoxSpec(image="host", resources=Resources(memory_mb=512))
KNOWN = [TEMPLATE, BoxSpec(image="/srv/images/known")]


def capabilities(*images: str | Path) -> Capabilities:
    return Capabilities(
        limits={},
        networks=frozenset({"none"}),
        caller_images=("host", *map(str, images)),
        most=Resources(cpu=2, memory_mb=8192, pids=32768, disk_mb=100_000),
    )


async def check(spec: BoxSpec, allowed: Capabilities) -> None:
    await check_spec(spec, template=TEMPLATE, templates=KNOWN, capabilities=allowed)


@pytest.mark.parametrize(
    "image", ["/", "/etc", "/root", "/srv/images", "/srv/images/known/../..", "etc", "~", "host/"]
)
async def test_a_directory_that_nobody_listed_is_forbidden(image: str) -> None:
    with pytest.raises(SandboxdError) as caught:
        await check(replace(TEMPLATE, image=image), capabilities())
    assert caught.value.code is ErrorCode.FORBIDDEN
    assert "backend.local.images" in caught.value.detail


@pytest.mark.parametrize("image", ["host", "/srv/images/known"])
async def test_what_templates_name_may_be_named(image: str) -> None:
    await check(replace(TEMPLATE, image=image), capabilities())


async def test_what_lies_below_a_listed_folder_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "images" / "python").mkdir(parents=True)
    await check(replace(TEMPLATE, image=str(tmp_path / "images/python")), capabilities(tmp_path))


async def test_no_link_and_no_dots_lead_out_of_a_listed_folder(tmp_path: Path) -> None:
    images = tmp_path / "images"
    (images / "python").mkdir(parents=True)
    (images / "python" / "way-out").symlink_to("/")
    (images / "circle").symlink_to("circle")
    for image in ("python/way-out", "python/way-out/root", "../elsewhere", "circle", "python/\0"):
        with pytest.raises(SandboxdError) as caught:
            await check(replace(TEMPLATE, image=f"{images}/{image}"), capabilities(images))
        assert caught.value.code is ErrorCode.FORBIDDEN


async def test_a_folder_beside_a_listed_one_is_not_below_it(tmp_path: Path) -> None:
    (tmp_path / "images-of-others").mkdir()
    with pytest.raises(SandboxdError):
        await check(
            replace(TEMPLATE, image=f"{tmp_path}/images-of-others"),
            capabilities(tmp_path / "images"),
        )


@pytest.mark.parametrize(
    ("image", "allowed"),
    [
        ("docker.io/library/known:latest", ()),  # a template's, by its whole name
        ("python:3.11", ("python",)),
        ("ghcr.io/team/x:1", ("ghcr.io/team/*",)),
        ("anything", ("*",)),
    ],
)
async def test_names_of_templates_and_patterns_may_be_named(
    image: str, allowed: tuple[str, ...]
) -> None:
    named = replace(capabilities(), caller_images=allowed)
    known = [BoxSpec(image="known")]
    spec = replace(TEMPLATE, image=image)
    await check_spec(spec, template=TEMPLATE, templates=known, capabilities=named)


@pytest.mark.parametrize("image", ["evil.example/python", "python2", "/etc", "sha256:" + "0" * 64])
async def test_names_that_no_pattern_allows_are_forbidden_with_the_mend(image: str) -> None:
    named = replace(capabilities(), caller_images=("python",))
    with pytest.raises(SandboxdError) as caught:
        await check(replace(TEMPLATE, image=image), named)
    assert caught.value.code is ErrorCode.FORBIDDEN
    assert "backend.docker.allow_images" in caught.value.detail


async def test_a_maker_without_a_list_takes_any_image() -> None:
    any_image = replace(capabilities(), caller_images=None)
    await check(replace(TEMPLATE, image="python:3.12"), any_image)


@pytest.mark.parametrize(
    "wanted",
    [{"memory_mb": 10_000_000}, {"cpu": 1000.0}, {"pids": 4_000_000}, {"disk_mb": 1 << 30}],
)
async def test_more_than_the_machine_has_is_refused_with_what_it_has(
    wanted: dict[str, float],
) -> None:
    spec = replace(TEMPLATE, resources=replace(TEMPLATE.resources, **wanted))  # type: ignore[arg-type]
    with pytest.raises(SandboxdError) as caught:
        await check(spec, capabilities())
    assert caught.value.code is ErrorCode.BAD_REQUEST
    assert caught.value.details["field"] == f"resources.{next(iter(wanted))}"
    assert "most" in caught.value.details


async def test_a_template_may_promise_more_than_the_machine_has() -> None:
    large = replace(TEMPLATE, resources=Resources(cpu=64, memory_mb=1 << 20))
    await check_spec(
        replace(large, image="host"), template=large, templates=[large], capabilities=capabilities()
    )


def test_a_second_user_is_refused_where_boxes_have_one() -> None:
    one = capabilities()
    for user in ("", "0", "root"):
        check_user(user, one)
    with pytest.raises(SandboxdError) as caught:
        check_user("1000", one)
    assert caught.value.code is ErrorCode.NOT_SUPPORTED
    check_user("1000", replace(one, other_users=True))
