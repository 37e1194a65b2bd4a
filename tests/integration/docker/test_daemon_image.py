"""The daemon's own image: who it is, what it may write, what is not in it, whether it is well."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
import pytest

from scripts.images import daemon_root
from scripts.images.daemon import build_daemon_image, write_from_debian
from scripts.images.recipe import FOLDER
from tests.conftest import EngineHost
from tests.contract.speaker import eventually
from tests.integration.docker.test_contained_daemon import wheels

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]

_TAG = "sandboxd/daemon:checked"
_PROGRAMS = "cc gcc c++ clang as ld make go rustc pip pip3 curl wget"


def made_of_debian(client: docker.APIClient, _image: str, folder: Path) -> None:
    archive = folder / "daemon.tar"
    write_from_debian(archive, tag=_TAG)
    with archive.open("rb") as data:
        for _ in client.load_image(data):  # type: ignore[no-untyped-call]
            pass


def built_by_the_engine(client: docker.APIClient, image: str, folder: Path) -> None:
    build_daemon_image(client, base=image, tag=_TAG, wheels=wheels(folder / "wheels"))


@pytest.mark.parametrize("build", [made_of_debian, built_by_the_engine])
def test_the_image_runs_as_nobody_in_particular_on_a_root_that_it_cannot_write(
    engine_host: EngineHost,
    tmp_path: Path,
    build: Callable[[docker.APIClient, str, Path], None],
) -> None:
    with closing(
        docker.APIClient(base_url=engine_host.host, version="1.41", timeout=300)
    ) as client:
        build(client, engine_host.image, tmp_path)
        made = start(client)
        try:
            eventually(lambda: health(client, made) == "healthy", within_s=60, what="it is well")
            assert said(client, made, "id -u; id -g") == "10001\n10001"
            refused = said(client, made, "touch /x /opt/sandboxd/x /etc/x 2>&1 || true")
            assert refused.count("Read-only file system") == 3
            assert said(client, made, "touch /var/lib/sandboxd/x && echo may") == "may"
            if build is made_of_debian:
                assert said(client, made, f"command -v {_PROGRAMS} || true") == ""
            assert "sandboxd" in said(client, made, "sandboxd --version")
            client.stop(made, timeout=20)
            assert client.inspect_container(made)["State"]["ExitCode"] == 0
        finally:
            client.remove_container(made, force=True, v=True)
            client.remove_image(_TAG)


def start(client: docker.APIClient) -> str:
    limits = client.create_host_config(
        read_only=True, cap_drop=["ALL"], security_opt=["no-new-privileges"], tmpfs={"/tmp": ""}
    )
    made = client.create_container(
        _TAG,
        environment={"SANDBOXD_BACKEND": "fake"},
        volumes=["/var/lib/sandboxd"],
        host_config=limits,
    )
    client.start(made)
    return str(made["Id"])


def health(client: docker.APIClient, made: str) -> str:
    state = client.inspect_container(made)["State"]
    assert state["Running"], client.logs(made).decode()
    return str(state["Health"]["Status"])


def said(client: docker.APIClient, made: str, script: str) -> str:
    started = client.exec_create(made, ["sh", "-c", script])
    answer: Any = client.exec_start(started["Id"])
    return bytes(answer).decode().strip()


def test_both_ways_say_the_same_of_the_image() -> None:
    told = (FOLDER / "daemon" / "Dockerfile").read_text()
    words = daemon_root.words("x:y")
    variables = dict(re.findall(r"(\w+)=(\S+)", " ".join(re.findall(r"(?m)^ENV (.+)$", told))))
    assert variables == words.env
    assert re.findall(r"(?m)^USER (.+)$", told) == [words.user]
    for line, values in (("ENTRYPOINT", words.entrypoint), ("CMD", words.command)):
        assert f"{line} {json.dumps(values)}" in told
    assert words.health[-1] in told
