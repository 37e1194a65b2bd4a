"""How the guest's program gets into pods: what is asked of a cluster, and what pods are then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandboxd.backends.kubernetes.creating import PodPlan, pod_body
from sandboxd.backends.kubernetes.guest_volume import choose_guest_volume
from sandboxd.backends.kubernetes.settings import GuestVolumeWord, KubernetesSettings
from sandboxd.backends.kubernetes.talking.server import open_server
from sandboxd.backends.protocol import BoxOrder
from sandboxd.errors import SandboxdError
from sandboxd.model.template import BoxSpec
from sandboxd.wire.codes import ErrorCode
from tests.support.small_server import Answer, access_to, small_server

pytestmark = pytest.mark.anyio


def settings(word: GuestVolumeWord = "auto") -> KubernetesSettings:
    return KubernetesSettings(installation="tests", guest_image="g:1", guest_volume=word)


async def chosen(
    tmp_path: Path, version: str, *, keeps: bool, word: GuestVolumeWord = "auto"
) -> tuple[str, list[str]]:
    """What is chosen at a server that keeps such volumes or drops them, and what it was asked."""
    asked: list[str] = []

    def answers(path: str, body: dict[str, Any]) -> Answer:
        asked.append(path)
        if not keeps:
            body["spec"]["volumes"] = [{"name": "guest", "emptyDir": {}}]
        return Answer(body=body)

    with small_server(answers) as url:
        server = await open_server(access_to(url, tmp_path), threads=1)
        try:
            found = await choose_guest_volume(
                server, settings(word), namespace="n", version=version
            )
        finally:
            await server.aclose()
    return found, asked


async def test_it_is_an_image_where_the_server_keeps_such_a_volume_and_no_pod_is_made(
    tmp_path: Path,
) -> None:
    found, (asked,) = await chosen(tmp_path, "v1.35.1", keeps=True)
    assert found == "image"
    assert "dryRun=All" in asked


async def test_it_is_a_copy_where_the_feature_is_switched_off(tmp_path: Path) -> None:
    assert (await chosen(tmp_path, "v1.33.0+k3s1", keeps=False))[0] == "copy"


@pytest.mark.parametrize("version", ["v1.27.3", "v1.32.9", "", "nonsense"])
async def test_older_clusters_and_those_that_do_not_say_are_not_even_asked(
    tmp_path: Path, version: str
) -> None:
    assert await chosen(tmp_path, version, keeps=True) == ("copy", [])


async def test_a_copy_that_is_asked_for_is_one_everywhere(tmp_path: Path) -> None:
    assert await chosen(tmp_path, "v1.36.0", keeps=True, word="copy") == ("copy", [])


async def test_an_image_that_is_asked_for_and_not_to_be_had_is_refused_with_the_mend(
    tmp_path: Path,
) -> None:
    with pytest.raises(SandboxdError) as caught:
        await chosen(tmp_path, "v1.34.0", keeps=False, word="image")
    assert caught.value.code is ErrorCode.NOT_SUPPORTED
    assert 'guest_volume = "copy"' in caught.value.detail


def test_a_pod_with_the_image_as_a_volume_copies_the_token_alone() -> None:
    order = BoxOrder(box_id="box-a1", spec=BoxSpec(image="i:1"), labels={})
    body = pod_body(
        PodPlan(
            order=order, installation="i", tag="t", guest_image="g:1", token="x" * 16,
            guest_volume="image",
        )
    )["spec"]  # fmt: skip
    (guest,), (main,) = body["initContainers"], body["containers"]
    assert guest["args"] == ["install", "--token-file", "/guest/shared/token"]
    volume = {"name": "program", "image": {"reference": "g:1", "pullPolicy": "IfNotPresent"}}
    assert volume in body["volumes"]
    assert main["command"] == ["/run/sandbox-guest/sandbox-guest"]
    mounts = {each["mountPath"]: each for each in main["volumeMounts"]}
    assert mounts["/run/sandbox-guest"] == {
        "name": "program", "mountPath": "/run/sandbox-guest", "readOnly": True,
    }  # fmt: skip
    assert mounts["/run/guest"]["subPath"] == "shared"
