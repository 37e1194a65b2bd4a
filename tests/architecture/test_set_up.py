"""The set-up: the guest is built when its sources change; odd Pythons are seen through."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest

from scripts import build_guest, pythons
from tests.architecture.tree import ROOT

HERE = build_guest.own_architecture()
PROGRAM = 'package main\n\nfunc main() { println("one") }\n'


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny guest of its own to build; its folder of sources."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "go.mod").write_text("module tiny\n\ngo 1.22\n")
    (sources / "main.go").write_text(PROGRAM)
    monkeypatch.setattr(build_guest, "SOURCES", sources)
    monkeypatch.setattr(build_guest, "BINARIES", tmp_path / "bin")
    monkeypatch.delenv("HOME", raising=False)
    return sources


@pytest.mark.timeout(110)  # the first time Go compiles its library
@pytest.mark.skipif(build_guest.find_go() is None, reason="no Go here")
def test_the_guest_is_built_when_its_sources_change_and_only_then(guest: Path) -> None:
    assert not build_guest.is_current(HERE)
    assert build_guest.build(HERE)
    first = build_guest.binary(HERE[0]).read_bytes()
    assert build_guest.is_current(HERE)
    assert not build_guest.build(HERE)

    (guest / "main_test.go").write_text("package main\n")
    assert not build_guest.build(HERE)

    (guest / "main.go").write_text(PROGRAM.replace("one", "two"))
    assert not build_guest.is_current(HERE)
    assert build_guest.build(HERE)
    assert build_guest.binary(HERE[0]).read_bytes() != first
    assert os.access(build_guest.binary(HERE[0]), os.X_OK)


@pytest.mark.timeout(110)
@pytest.mark.skipif(build_guest.find_go() is None, reason="no Go here")
def test_a_guest_that_does_not_compile_says_where_and_is_tried_again(guest: Path) -> None:
    (guest / "main.go").write_text("package main\n\nfunc main() { nonsense() }\n")
    with pytest.raises(build_guest.BuildError, match=r"main\.go:3"):
        build_guest.build(HERE)
    assert not build_guest.is_current(HERE)
    assert list(build_guest.BINARIES.iterdir()) == []


def test_a_project_without_go_sources_says_so(guest: Path) -> None:
    (guest / "main.go").unlink()
    with pytest.raises(build_guest.BuildError, match="no Go sources"):
        build_guest.build(HERE)


def test_a_python_without_ensurepip_is_known_to_lack_venv(tmp_path: Path) -> None:
    (tmp_path / "ensurepip.py").write_text("raise ImportError('packaged apart')")
    crippled = tmp_path / "python3"
    hide = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); exec(sys.argv[-1])"
    crippled.write_text(f'#!/bin/sh\nexec {sys.executable} -I -c "{hide}" "$3"\n')
    crippled.chmod(0o755)
    found = pythons.probe(str(crippled))
    assert found is not None
    assert found.will_do
    assert not found.has_venv


def test_a_python_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    assert pythons.probe(str(broken)) is None
    assert pythons.probe(str(tmp_path / "absent")) is None


def test_folders_of_the_path_that_are_no_folders_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PATH", f"{tmp_path / 'file'}::{tmp_path / 'absent'}:/usr/bin")
    assert any(one.will_do for one in pythons.interpreters())


@pytest.mark.parametrize("script", ["setup", "pythons", "build_guest"])
def test_the_set_up_is_written_in_the_oldest_python_that_may_start_it(script: str) -> None:
    source = (ROOT / "scripts" / f"{script}.py").read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 9))
