"""Images on nodes before their first pod: pulled once they are wanted, kept, let go, told of."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxd.backends.kubernetes import KubernetesBackend
from sandboxd.backends.kubernetes.imaging.bodies import IMAGE, daemon_sets_path
from sandboxd.backends.kubernetes.objects import INSTALLATION, pods_path
from sandboxd.backends.protocol import Image, Images, ImageState, Wanted
from sandboxd.errors import SandboxdError
from sandboxd.model.template import PodOptions
from sandboxd.wire.codes import ErrorCode, Fault
from tests.contract.cases.houses import house
from tests.contract.speaker import eventually
from tests.support.cluster import POD_IMAGE, TestCluster
from tests.support.cluster_boxes import backend_on, order
from tests.support.cluster_pods import NAMESPACE, Cluster

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(180)]

MARK = "fetched"
NOWHERE = "127.0.0.1:1/no/such:1"


@asynccontextmanager
async def prefetching(cluster: TestCluster) -> AsyncIterator[tuple[KubernetesBackend, Images]]:
    """At the end nothing of it is left."""
    async with backend_on(cluster, installation=MARK, prefetch_images=True) as backend:
        assert backend.images is not None
        yield backend, backend.images
    assert daemon_sets(cluster, MARK) == {}


def daemon_sets(cluster: TestCluster, installation: str) -> dict[str, dict[str, Any]]:
    """By the image that each is for."""
    found = Cluster(cluster).get(
        daemon_sets_path(NAMESPACE), labelSelector=f"{INSTALLATION}={installation}"
    )["items"]
    return {each["metadata"]["annotations"]["sandboxd/image-reference"]: each for each in found}


def wanted(*images: str, pod: PodOptions | None = None) -> dict[str, Wanted]:
    return {image: Wanted(stocked=True, pods=frozenset({pod or PodOptions()})) for image in images}


async def until(check: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not check():  # noqa: ASYNC110 - the cluster tells nobody
            await anyio.sleep(0.1)


async def listed(images: Images, reference: str, check: Callable[[Image], bool]) -> Image:
    """The image once it is so."""
    with anyio.fail_after(60):
        while True:
            for image in await images.list_images():
                if image.reference == reference and check(image):
                    return image
            await anyio.sleep(0.1)


@pytest.mark.anyio
async def test_what_templates_name_is_on_the_nodes_before_its_first_pod_and_let_go_after_them(
    cluster: TestCluster,
) -> None:
    templates = wanted(POD_IMAGE)
    told: list[str] = []
    async with prefetching(cluster) as (backend, images):
        images.when_pulled(told.append)
        images.wanted_by(lambda: templates)
        found = await listed(images, POD_IMAGE, lambda each: each.state is ImageState.PRESENT)
        assert (found.progress, found.in_use) == ("on 1 of 1 nodes", 0)
        assert told == [POD_IMAGE]
        assert list(daemon_sets(cluster, MARK)) == [POD_IMAGE]
        await backend.make(order())
        found = await listed(images, POD_IMAGE, lambda each: each.in_use == 1)
        assert found.used_at is not None
        templates.clear()
        await until(lambda: not daemon_sets(cluster, MARK))
        assert await backend.list_owned() != []


@pytest.mark.anyio
async def test_only_the_nodes_that_a_templates_pods_may_go_to_pull_its_image(
    cluster: TestCluster,
) -> None:
    nowhere = PodOptions(fields=json.dumps({"nodeSelector": {"no-such": "node"}}))
    async with prefetching(cluster) as (_, images):
        images.wanted_by(lambda: wanted(POD_IMAGE, pod=nowhere))
        await until(lambda: POD_IMAGE in daemon_sets(cluster, MARK))
        found = daemon_sets(cluster, MARK)[POD_IMAGE]
        spec = found["spec"]["template"]["spec"]
        assert spec["nodeSelector"] == {"no-such": "node"}
        selector = f"{INSTALLATION}={MARK},{IMAGE}={found['metadata']['labels'][IMAGE]}"
        pods = Cluster(cluster).get(pods_path(NAMESPACE), labelSelector=selector)
        assert pods["items"] == []
        (image,) = await images.list_images()
        assert (image.state, image.progress) == (ImageState.PULLING, "on 0 of 0 nodes")


@pytest.mark.anyio
@pytest.mark.slow
async def test_an_image_that_cannot_be_had_is_told_of_and_its_node_tries_ever_more_seldom(
    cluster: TestCluster,
) -> None:
    async with prefetching(cluster) as (_, images):
        images.wanted_by(lambda: wanted(NOWHERE))
        found = await listed(images, NOWHERE, lambda each: each.state is ImageState.FAILED)
        assert NOWHERE in found.error
        with anyio.fail_after(60), pytest.raises(SandboxdError) as caught:
            await images.prefetch(NOWHERE)
        assert (caught.value.code, caught.value.fault) == (
            ErrorCode.IMAGE_UNAVAILABLE,
            Fault.INFRA,
        )
        found = await listed(images, NOWHERE, lambda each: "back-off" in each.error.lower())
        assert found.state is ImageState.FAILED


@pytest.mark.anyio
async def test_what_a_caller_asks_for_is_pulled_and_nothing_stands_for_it_afterwards(
    cluster: TestCluster,
) -> None:
    async with prefetching(cluster) as (_, images):
        with anyio.fail_after(60):
            image = await images.prefetch(POD_IMAGE)
            assert (image.reference, image.state) == (POD_IMAGE, ImageState.PRESENT)
        await until(lambda: not daemon_sets(cluster, MARK))


def test_a_daemon_keeps_images_on_nodes_over_a_restart_and_a_sweep_of_all_takes_them_away(
    cluster: TestCluster, tmp_path: Path
) -> None:
    with house(
        tmp_path, cluster, pool="ready = 1, max = 2", table="prefetch_images = true"
    ) as opened:
        opened.full(within_s=60)
        assert opened.pods is not None
        installation = opened.pods.installation
        eventually(
            lambda: list(daemon_sets(cluster, installation)) == [POD_IMAGE],
            within_s=30,
            what="there is one for the image",
        )
        (before,) = daemon_sets(cluster, installation).values()
        assert opened.service.stop() == 0
        opened.service.start()
        opened.full(within_s=60)
        (after,) = daemon_sets(cluster, installation).values()
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        opened.service.end()
        assert daemon_sets(cluster, installation) == {}
