"""The program by itself: what it parses, how it fails, and that its page is true to it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import anyio
import pytest

from sandboxd.cli import main
from sandboxd.cli.parser import VERBS, parse
from sandboxd.cli.reference import cli_reference

ROOT = Path(__file__).parent.parent.parent
CONTRACT = ROOT / "tests" / "data" / "contract.toml"


async def run(code: str, *argv: str) -> tuple[int, str, str]:
    """A fresh interpreter that runs `code` with these arguments."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")])}
    with anyio.fail_after(15):
        done = await anyio.run_process([sys.executable, "-c", code, *argv], check=False, env=env)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_the_page_of_the_command_line_is_true_to_the_parser() -> None:
    assert (ROOT / "docs" / "cli.md").read_text() == cli_reference()


def test_every_verb_of_the_contract_is_there() -> None:
    names = {verb.name for verb in VERBS}
    wanted = (
        "check-config cp demo doctor exec lease logs ls openapi pools release serve shell sweep"
    )
    assert names >= set(f"{wanted} top".split())


def test_what_follows_the_two_dashes_of_exec_is_the_commands_own() -> None:
    args = parse(["exec", "--timeout", "5", "sbx-1", "--", "sh", "-c", "x", "--", "--timeout"])
    assert args.id == "sbx-1"
    assert args.timeout == 5
    assert args.cmd == ["sh", "-c", "x", "--", "--timeout"]


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["nonsense"],
        ["demo", "--limit", "0"],
        ["demo", "--concurrency", "x"],
        ["lease", "python", "--env", "novalue"],
        ["lease", "python", "--timeout", "-1"],
        ["lease", "python", "--timeout", "nan"],
    ],
)
def test_wrong_arguments_leave_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "usage: sandboxd" in capsys.readouterr().err


def test_check_config_accepts_the_contracts_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", str(CONTRACT)]) == 0
    assert "in order" in capsys.readouterr().out


def test_check_config_tells_each_problem_in_a_line_and_leaves_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[server]\nport = 'x'\nhots = 1\n")
    assert main(["check-config", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"sandboxd: {path}: server.") for line in lines)


def test_the_filter_of_system_calls_is_printed_for_nodes_of_either_architecture(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for machine, name in (("amd64", "SCMP_ARCH_X86_64"), ("arm64", "SCMP_ARCH_AARCH64")):
        assert main(["seccomp-profile", "--machine", machine]) == 0
        assert json.loads(capsys.readouterr().out)["architectures"] == [name]


@pytest.mark.parametrize("verb", ["serve", "check-config", "doctor", "sweep"])
def test_a_missing_configuration_is_a_line_and_no_traceback(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "--config", str(tmp_path / "none.toml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"sandboxd: {tmp_path}/none.toml: cannot be read: " + line.partition("read: ")[2]


async def test_a_daemon_verb_without_the_daemons_packages_names_the_command_to_run() -> None:
    code = (
        "import sys; sys.modules['pydantic'] = None\n"
        "from sandboxd.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    status, _, err = await run(code, "serve")
    assert status == 1
    assert "pip install 'sandboxd[daemon]'" in err
    assert "Traceback" not in err


async def test_client_verbs_load_nothing_of_the_daemon() -> None:
    code = (
        "import sys\n"
        "for name in ('pydantic', 'fastapi', 'uvicorn', 'structlog', 'starlette'):\n"
        "    sys.modules[name] = None\n"
        "from sandboxd.cli import leasing, listing, top\n"
        "from sandboxd.cli.inside import copy, execute, shell\n"
    )
    status, _, err = await run(code)
    assert (status, err) == (0, "")


async def test_help_loads_no_room() -> None:
    code = (
        "import sys\n"
        "from sandboxd.cli.parser import build_parser; build_parser().format_help()\n"
        "print(sorted({'anyio', 'pydantic', 'sandboxd_client'} & set(sys.modules)))"
    )
    assert await run(code) == (0, "[]\n", "")


def test_a_client_verb_without_a_daemon_says_where_it_looked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SANDBOXD_API_URL", "http://127.0.0.1:9")
    assert main(["ls"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("sandboxd: no daemon at http://127.0.0.1:9")
    assert "sandboxd serve" in err
