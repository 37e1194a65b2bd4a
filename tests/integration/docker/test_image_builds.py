"""The images: what is in them, in an engine and unpacked for the local backend."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import docker
import pytest

from scripts.images.cache import cached_tar
from scripts.images.recipe import Recipe
from tests.conftest import EngineHost
from tests.support.daemon import ROOT
from tests.support.engine import TestEngine, engine, missing

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]


def inside(host: str, image: str, command: str, *, user: str = "") -> str:
    """What a command says in a container of that image that reaches no network."""
    with closing(docker.APIClient(base_url=host, version="1.41", timeout=60)) as client:
        made = client.create_container(
            image, command=["sh", "-c", command], user=user or None, network_disabled=True
        )["Id"]
        try:
            client.start(made)
            status = client.wait(made)["StatusCode"]
            said = client.logs(made).decode()
        finally:
            client.remove_container(made, force=True, v=True)
    assert status == 0, said
    return str(said).strip()


def test_the_python_image_has_what_an_agent_expects(engine_host: EngineHost) -> None:
    said = inside(
        engine_host.host,
        engine_host.image,
        "git --version && ps --version && bash --version && python -m pip --version"
        " && python -m venv /tmp/v && python -c 'import numpy, ipykernel; print(numpy.__version__)'"
        " && jupyter kernelspec list --json && env && pwd",
    )
    for word in ("git version", "procps", "GNU bash", "pip ", '"python3"', "LANG=C.UTF-8"):
        assert word in said
    assert said.splitlines()[-1] == "/workspace"


def test_python_and_python3_are_one(engine_host: EngineHost) -> None:
    ask = "import sys; print(sys.version, sys.prefix)"
    command = f'test "$(python -c "{ask}")" = "$(python3 -c "{ask}")"'
    inside(engine_host.host, engine_host.image, command)


def test_a_second_user_may_write_where_work_is_done(engine_host: EngineHost) -> None:
    said = inside(
        engine_host.host, engine_host.image, "id -u && touch /workspace/a ~/b", user="agent"
    )
    assert said == "1000"


def test_nothing_of_the_machine_that_built_it_is_in_an_image(engine_host: EngineHost) -> None:
    said = inside(
        engine_host.host,
        engine_host.image,
        "ls -d /setup /var/lib/apt/lists/* ~root/.cache /etc/apt/apt.conf.d/99setup || true",
    )
    assert all("No such file" in line for line in said.splitlines())
    with closing(docker.APIClient(base_url=engine_host.host, version="1.41")) as client:
        (image,) = client.images(engine_host.image)
    assert image["Size"] < 400 << 20


def build(*argv: str, host: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scripts.images", *argv],
        cwd=ROOT,
        env={**os.environ, "DOCKER_HOST": host},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture
def own_engine() -> Iterator[TestEngine]:
    if gap := missing():
        pytest.skip(gap)
    with engine() as started:
        yield started


def test_images_that_are_there_are_not_built_again(own_engine: TestEngine) -> None:
    argv = ("--image", "base", "--source", "debian", "--tag", "mine/{name}:1")
    first = build(*argv, host=own_engine.host)
    assert "mine/base:1 is in the engine" in first.stdout, first.stderr
    again = build(*argv, host=own_engine.host)
    assert again.returncode == 0
    assert "built from these inputs already" in again.stdout


@pytest.mark.slow
def test_a_registrys_image_is_built_upon_and_leaves_no_trace_of_the_build(
    own_engine: TestEngine,
) -> None:
    """The root that Debian's packages make stands in for the registry's image."""
    with closing(own_engine.client()) as client:
        client.import_image_from_file(
            str(cached_tar("base")),
            repository="python",
            tag="3.12-slim",
            changes=Recipe().changes("base", ""),
        )
        said = build("--source", "registry", "--tag", "mine/{name}:1", host=own_engine.host)
        assert said.returncode == 0, said.stdout + said.stderr
        assert client.containers(all=True) == []
        names = {name for image in client.images() for name in image["RepoTags"] or []}
    assert names == {"python:3.12-slim", "mine/base:1", "mine/python:1"}
    inside(own_engine.host, "mine/python:1", "python -c 'import numpy' && test ! -e /setup")


def test_a_root_is_unpacked_for_the_local_backend(tmp_path: Path) -> None:
    if gap := missing():
        pytest.skip(gap)
    argv = ("--image", "base", "--source", "debian", "--root", str(tmp_path), "--tar")
    said = build(*argv, str(tmp_path), host="unix:///nonexistent")
    assert said.returncode == 0, said.stderr
    assert (tmp_path / "base" / "usr" / "bin" / "git").exists()
    assert (tmp_path / "base" / "workspace").stat().st_mode & 0o7777 == 0o1777
    assert (tmp_path / "base.tar").exists()
    again = build(*argv, str(tmp_path), host="unix:///nonexistent")
    assert again.returncode == 1
    assert "is not empty: remove it" in again.stderr


def test_no_engine_is_a_line_with_the_mend(tmp_path: Path) -> None:
    said = build(host=f"unix://{tmp_path}/no.sock")
    assert said.returncode == 1
    assert "apt-get install docker.io" in said.stderr
    assert "Traceback" not in said.stderr
