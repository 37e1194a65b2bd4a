"""The page about Kubernetes works as written: its files are accepted and its commands run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.backends.kubernetes.objects import pods_path, secrets_path
from tests.support.cluster import TestCluster
from tests.support.cluster_pods import Cluster
from tests.support.pages import background, blocks, environment_of, lay_out, run, write_files

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(240)]

PAGE = "kubernetes.md"
_NAMESPACE = "sandboxes"


def test_every_block_of_the_page_is_one_that_this_test_knows() -> None:
    kinds = {(block.kind, block.what.split()[0] if block.what else "") for block in blocks(PAGE)}
    known = {("toml", "file"), ("yaml", "file"), ("sh", "kubectl"), ("sh", ""), ("sh", "not")}
    assert kinds <= known | {("sh", "background")}
    assert ("sh", "background") in kinds


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return lay_out(tmp_path)


@pytest.fixture
def environment(cluster: TestCluster, tmp_path: Path) -> dict[str, str]:
    return environment_of(tmp_path, KUBECONFIG=str(cluster.kubeconfig))


@pytest.fixture
def server(cluster: TestCluster) -> Iterator[Cluster]:
    """The namespace of the page goes with the test."""
    found = Cluster(cluster)
    yield found
    found.delete(f"/api/v1/namespaces/{_NAMESPACE}")


def test_the_pages_files_are_accepted(place: Path, environment: dict[str, str]) -> None:
    names = write_files(PAGE, place)
    assert names == ["role.yaml", "sandboxd.toml", "template.toml"]
    for name in names[1:]:
        run(f".venv/bin/sandboxd check-config --config {name}", place, environment)


def test_the_pages_commands_do_what_it_says(
    place: Path, environment: dict[str, str], server: Cluster
) -> None:
    write_files(PAGE, place)
    said = ""
    if shutil.which("kubectl") is None:
        server.create("/api/v1/namespaces", {"metadata": {"name": _NAMESPACE}})
    with background(place, environment) as start:
        for block in blocks(PAGE):
            applied = block.what == "kubectl" and shutil.which("kubectl") is not None
            if block.kind == "sh" and (not block.what or applied):
                said += run(block.text, place, environment)
            elif block.what == "background":
                start(block.text)
    assert "sandboxes can be made here" in said
    assert "the cluster would take its pods" in said
    assert "\nhello\n" in said
    for path in (pods_path(_NAMESPACE), secrets_path(_NAMESPACE)):
        left = [each["metadata"]["name"] for each in server.get(path)["items"]]
        assert not [name for name in left if name.startswith("sandboxd-")]
