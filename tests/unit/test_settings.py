"""Settings: what is accepted, what is refused and in which words, and what never shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd.backend_choice import hidden_files
from sandboxd.settings import (
    Settings,
    SettingsError,
    describe_settings,
    load_settings,
)

CONTRACT = Path(__file__).parent.parent / "data" / "contract.toml"


def load(tmp_path: Path, text: str, **env: str) -> Settings:
    path = tmp_path / "sandboxd.toml"
    path.write_text(text)
    return load_settings(path, env=env)


def refusals(tmp_path: Path, text: str, **env: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text, **env)
    return [str(problem) for problem in caught.value.problems]


def test_the_contracts_text_is_accepted_as_it_stands() -> None:
    settings = load_settings(CONTRACT, env={})
    assert settings.server.port == 8420
    assert settings.limits.max_sandboxes == 1000
    assert settings.compat == {"prime": {"python:3.11-slim": "python"}}
    template = settings.templates["python"]
    assert template.spec.image == "host"
    assert template.spec.resources.memory_mb == 512
    assert template.pool.queue == 1000
    (notes,) = template.mcp_servers
    assert notes.command == ("python3", "-m", "notes_server")
    assert notes.scope == "rollout"


def test_without_a_file_there_is_one_template_on_the_host() -> None:
    settings = load_settings(None, env={})
    assert [(name, t.spec.image) for name, t in settings.templates.items()] == [("python", "host")]
    assert settings.templates["python"].pool.ready > 0
    assert settings.source is None


def test_the_built_in_stock_fits_a_small_house() -> None:
    settings = load_settings(None, env={"SANDBOXD_MAX_SANDBOXES": "1"})
    assert settings.templates["python"].pool.ready == 1


def test_variables_override_the_file_and_flags_override_both(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('state_dir = "/a"\n[server]\nport = 1\nhost = "127.0.0.2"\n')
    env = {
        "SANDBOXD_PORT": "2",
        "SANDBOXD_STATE_DIR": "/b",
        "SANDBOXD_BACKEND": "fake",
        "SANDBOXD_PUBLIC_URL": "https://x.example/base/",
    }
    settings = load_settings(path, env=env, overrides={"server.port": 3, "server.host": None})
    assert (settings.server.port, settings.server.host) == (3, "127.0.0.2")
    assert settings.state_dir == Path("/b")
    assert settings.backend.kind == "fake"
    assert settings.server.base_url() == "https://x.example/base"


def test_a_bad_variable_is_named_as_the_source(tmp_path: Path) -> None:
    (text,) = refusals(tmp_path, "", SANDBOXD_PORT="http")
    assert text == "SANDBOXD_PORT: server.port: must be a valid integer; it is 'http'"


def test_a_misspelt_variable_is_refused_and_a_service_link_is_not_ours(tmp_path: Path) -> None:
    (text,) = refusals(tmp_path, "", SANDBOXD_BAKEND="fake")
    assert "`SANDBOXD_BACKEND`" in text
    link = {"SANDBOXD_PORT": "tcp://10.0.0.1:8420", "SANDBOXD_SERVICE_HOST": "10.0.0.1"}
    assert load(tmp_path, "", **link).server.port == 8420


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[server]\nhots = 1", "server.hots: there is no such key; did you mean `server.host`?"),
        ("port = 1", "port: there is no such key here; did you mean `server.port`?"),
        (
            '[templates.a]\nimage = "host"\npool = {redy = 1}',
            "templates.a.pool.redy: there is no such key; did you mean `templates.a.pool.ready`?",
        ),
        (
            '[[server.api_keys]]\nname = "a"\nkeyfile = "x"\nkey = "k"',
            "server.api_keys[0].keyfile: there is no such key; did you mean `server.api_keys[0].k",
        ),
        ("zzz = 1", "zzz: there is no such key; the nearest is `"),
        (
            '[templates.a]\nimage = "host"\nzzz = 1',
            "templates.a.zzz: there is no such key; the nearest is `",
        ),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(
    tmp_path: Path, text: str, expected: str
) -> None:
    assert any(expected in refusal for refusal in refusals(tmp_path, text))


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ('image = ""', "image"),
        ('image = "h\\u0000"', "image"),
        ('image = "python:3.12"', "image"),  # no image for the local backend
        ("timeout_s = inf", "timeout_s"),
        ("timeout_s = -1", "timeout_s"),
        ("timeout_s = 10\nmax_timeout_s = 5", ""),
        ('timeout_s = "10"', "timeout_s"),
        ("resources = {memory_mb = 0}", "resources.memory_mb"),
        ("resources = {cpu = nan}", "resources.cpu"),
        ("pool = {ready = 1000000}", "pool.ready"),
        ("pool = {ready = 3, max = 2}", "pool"),
        ("env = {'A=B' = 'x'}", "env"),
        ("env = {'' = 'x'}", "env"),
        ("env = {A = 1}", "env.A"),
        ('workdir = "relative"', "workdir"),
        ('network = "lan"', "network.kind"),
        ("network = {allow = []}", "network"),
        ('network = {allow = ["a b"]}', "network.allow[0]"),
        ("mcp_servers.n.command = []", "mcp_servers.n"),
        ("mcp_servers.n = {port = 70000}", "mcp_servers.n.port"),
        ("mcp_servers.n = {port = 80, prestart = true}", "mcp_servers.n"),
        ('mcp_servers.n = {scope = "shared"}', "mcp_servers.n.scope"),
        ('mcp_servers.n = {command = ["x"], hidden = {a = "{nope}"}}', "mcp_servers.n"),
        ('kernels = ["../x"]', "kernels[0]"),
    ],
)
def test_a_bad_value_of_a_template_is_refused_at_its_place(
    tmp_path: Path, line: str, place: str
) -> None:
    image = "" if line.startswith("image") else 'image = "host"\n'
    (text,) = refusals(tmp_path, f"[templates.t]\n{image}{line}\n")
    where = "templates.t" + (f".{place}" if place else "")
    assert f"sandboxd.toml: {where}: " in text


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    texts = refusals(tmp_path, '[server]\nport = 70000\n[backend]\nkind = "lokal"\n[limits]\nx = 1')
    assert len(texts) == 3


@pytest.mark.parametrize("text", ["[server", "a = \n", "[a]\n[a]\n"])
def test_what_is_no_toml_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    (refusal,) = refusals(tmp_path, text)
    assert "is not TOML" in refusal
    assert "line" in refusal or "end of document" in refusal


def test_a_file_that_cannot_be_read_is_a_clear_refusal(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"# \xe9\n")
    for path, words in [
        (tmp_path / "none", "No such file"),
        (tmp_path, "directory"),
        (tmp_path / "latin", "not UTF-8"),
    ]:
        with pytest.raises(SettingsError, match=words):
            load_settings(path, env={})


def test_a_template_has_forwards_by_port(tmp_path: Path) -> None:
    text = "[templates.t]\nimage = 'host'\nforwards = {'8000' = 'http://10.0.0.5:8000'}"
    assert load(tmp_path, text).templates["t"].forwards == {8000: "http://10.0.0.5:8000"}


@pytest.mark.parametrize("forward", ["'x' = 'http://h:1'", "'0' = 'http://h:1'", "'80' = 'h:1'"])
def test_a_forward_that_leads_nowhere_is_refused(tmp_path: Path, forward: str) -> None:
    (text,) = refusals(tmp_path, f"[templates.t]\nimage = 'host'\nforwards = {{{forward}}}")
    assert "templates.t.forwards" in text


def test_names_that_point_to_no_template_are_refused(tmp_path: Path) -> None:
    texts = refusals(
        tmp_path,
        '[compat.prime]\nimages = {"*" = "pyton"}\n'
        '[mcp_servers.s]\ncommand = ["x"]\ntemplate = "nope"\n'
        '[templates.python]\nimage = "host"\n',
    )
    assert all("there are `python`" in text for text in texts)
    assert len(texts) == 2


def test_a_run_folder_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    (text,) = refusals(tmp_path, f'[backend]\nrun_dir = "/{"x" * 80}"')
    assert "too long for the sockets" in text


def test_the_reference_describes_every_key_with_type_default_and_meaning() -> None:
    rows = {row.key: row for row in describe_settings()}
    assert rows["server.port"].default == "8420"
    assert rows["server.port"].variable == "SANDBOXD_PORT"
    assert rows["templates.NAME.network"].default == '"none"'
    assert rows["templates.NAME.image"].default == "required"
    assert rows["templates.NAME.pool.ready"].type == "integer"
    assert rows["backend.kind"].type.startswith('"local" | ')
    assert all(row.meaning and row.type for row in rows.values())


def test_folders_of_images_are_absolute_and_key_files_are_known_to_be_hidden(
    tmp_path: Path,
) -> None:
    (tmp_path / "key").write_text("a-key")
    settings = load(
        tmp_path,
        '[server]\napi_keys = [{name = "a", key_file = "key"}]\n'
        '[backend.local]\nimages = ["/srv/images"]\n',
    )
    assert settings.backend.local.images == (Path("/srv/images"),)
    assert hidden_files(settings) == (
        Path("/etc/sandboxd"),
        tmp_path / "sandboxd.toml",
        tmp_path / "key",
    )
    assert refusals(tmp_path, '[backend.local]\nimages = ["images"]\n')


def test_mounts_set_up_and_shared_memory_reach_the_spec_and_change_its_fingerprint(
    tmp_path: Path,
) -> None:
    plain = '[templates.t]\nimage = "host"\nenv = {A = "1"}\n'
    specs = [
        load(tmp_path, plain + more).templates["t"].spec
        for more in (
            "",
            'setup = ["true"]',
            'setup = ["true"]\nuser = "nobody"',
            "shm_mb = 64",
            'mounts = [{source = "/srv/a", target = "/data"}]',
            'mounts = [{source = "/srv/a", target = "/data", read_only = false}]',
        )
    ]
    assert len({spec.fingerprint() for spec in specs}) == len(specs)
    assert specs[0].setup.env == ()
    assert specs[1].setup.env == (("A", "1"),)
    assert specs[1].setup.timeout_s == 300
    assert specs[4].mounts[0].read_only


def test_an_environment_replaces_stock_only_where_a_set_up_has_seen_it(tmp_path: Path) -> None:
    def fingerprint(text: str) -> str:
        return (
            load(tmp_path, f'[templates.t]\nimage = "host"\n{text}')
            .templates["t"]
            .spec.fingerprint()
        )

    assert fingerprint('env = {A = "1"}') == fingerprint('env = {A = "2"}')
    with_setup = 'setup = ["true"]\nenv = {A = "%s"}'
    assert fingerprint(with_setup % 1) != fingerprint(with_setup % 2)


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/proc",
        "/proc/sys",
        "/sys/fs/cgroup",
        "/dev/shm",
        "/run/guest",
        "/run/sandbox-guest",
        "/run",
        "/usr",
        "/data/../proc",
        "//proc",
        "/data/",
        "data",
    ],
)
def test_nothing_is_mounted_on_what_a_sandbox_is_made_of(tmp_path: Path, target: str) -> None:
    (text,) = refusals(
        tmp_path,
        '[templates.t]\nimage = "host"\n'
        f'mounts = [{{source = "/a", target = "/ok"}}, {{source = "/b", target = "{target}"}}]',
    )
    assert "templates.t.mounts[1].target" in text


def test_two_mounts_on_one_place_are_refused(tmp_path: Path) -> None:
    mount = '{source = "/srv/a", target = "/data"}'
    (text,) = refusals(tmp_path, f'[templates.t]\nimage = "host"\nmounts = [{mount}, {mount}]')
    assert "something is mounted on `/data` already" in text


@pytest.mark.parametrize("source", ["/", "/var/lib", "/var/lib/mine", "/var/lib/mine/boxes"])
def test_no_mount_shows_the_daemons_own_directories(tmp_path: Path, source: str) -> None:
    mount = f'{{source = "{source}", target = "/data"}}'
    (text,) = refusals(
        tmp_path,
        f'state_dir = "/var/lib/mine"\n[templates.t]\nimage = "host"\nmounts = [{mount}]',
    )
    assert "templates.t.mounts[0].source" in text
    assert "the daemon's own files" in text


_NETWORKED = """
[backend]
kind = "docker"
[backend.docker]
{docker}
[limits]
max_sandboxes = {most}
[templates.a]
image = "python:3.12-slim"
pool = {{max = 600}}
[templates.b]
image = "python:3.12-slim"
pool = {{max = 600}}
"""


@pytest.mark.requirement("DK-10")
@pytest.mark.parametrize("docker", ['guest = "tcp"', 'host = "tcp://10.0.0.7:2376"'])
def test_more_sandboxes_than_a_bridge_takes_are_refused_with_the_mend(
    tmp_path: Path, docker: str
) -> None:
    (text,) = refusals(tmp_path, _NETWORKED.format(docker=docker, most=2000))
    assert "backend.docker.network" in text
    assert "1200 sandboxes may be on one bridge, which takes about 1000" in text
    assert "lower each `pool.max`" in text


@pytest.mark.requirement("DK-10")
@pytest.mark.parametrize(
    ("docker", "most"),
    [("", 2000), ('guest = "tcp"', 1000), ('guest = "tcp"\nnetwork = "theirs"', 2000)],
    ids=["on no bridge", "no more than it takes", "on another network"],
)
def test_as_many_sandboxes_as_there_is_room_for_are_accepted(
    tmp_path: Path, docker: str, most: int
) -> None:
    assert load(tmp_path, _NETWORKED.format(docker=docker, most=most)).limits.max_sandboxes == most
