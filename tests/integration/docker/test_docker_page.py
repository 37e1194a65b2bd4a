"""The page about Docker works as written: its files are accepted and its commands run in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import EngineHost
from tests.support.pages import background, blocks, environment_of, lay_out, run, write_files

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]

PAGE = "docker.md"


def test_every_block_of_the_page_is_one_that_this_test_knows() -> None:
    kinds = {(block.kind, block.what.split()[0] if block.what else "") for block in blocks(PAGE)}
    known = {("toml", "file"), ("sh", ""), ("sh", "background"), ("sh", "not")}
    assert kinds <= known
    assert ("sh", "background") in kinds


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return lay_out(tmp_path)


@pytest.fixture
def environment(engine_host: EngineHost, tmp_path: Path) -> dict[str, str]:
    return environment_of(tmp_path, DOCKER_HOST=engine_host.host)


def test_the_pages_files_are_accepted(place: Path, environment: dict[str, str]) -> None:
    names = write_files(PAGE, place)
    assert names == ["sandboxd.toml", "registries.toml"]
    (place / "secret").write_text("hunter2")
    for name in names:
        text = (place / name).read_text().replace("/run/secrets/registry", f"{place}/secret")
        (place / name).write_text(text)
        run(f".venv/bin/sandboxd check-config --config {name}", place, environment)


def test_the_pages_commands_do_what_it_says(place: Path, environment: dict[str, str]) -> None:
    write_files(PAGE, place)
    said = ""
    with background(place, environment) as start:
        for block in blocks(PAGE):
            if block.kind == "sh" and not block.what:
                said += run(block.text, place, environment)
            elif block.what == "background":
                start(block.text)
    assert "sandboxes can be made here" in said
    assert "sandboxes left over: 0" in said
    assert "\nhello\n" in said
    assert "sandboxd/python:latest" in said
