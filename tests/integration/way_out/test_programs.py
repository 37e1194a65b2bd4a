"""What people do through a way out: install packages, clone, set a template up, and restart us."""

from __future__ import annotations

import shutil
import socket
import subprocess
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from anyio.abc import SocketStream

from sandboxd.model.template import Network, Setup
from sandboxd_client import Sandboxd
from tests.conformance.conftest import Maker
from tests.support.service import service
from tests.support.ways import World, serving

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


@asynccontextmanager
async def files(folder: Path, *, host: str) -> AsyncIterator[int]:
    """A plain web server of a folder, with an index for each folder in it."""

    async def serve(stream: SocketStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive()
        path = head.split(b" ")[1].decode().partition("?")[0].strip("/")
        found = folder / path
        if found.is_dir():
            links = [f'<a href="/{path}/{one.name}">{one.name}</a>' for one in found.iterdir()]
            body, kind = "".join(links).encode(), b"text/html"
        else:
            body = found.read_bytes() if found.is_file() else b""
            kind = b"application/octet-stream"
        status = b"200 OK" if found.exists() else b"404 Not Found"
        answer = (
            b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        )
        await stream.send(answer % (status, kind, len(body)) + body)

    async with serving(serve, host=host) as port:
        yield port


def make_wheel(folder: Path) -> None:
    """A package of one module, as an index has it."""
    folder.mkdir(parents=True)
    info = "from_afar-1.0.dist-info"
    with zipfile.ZipFile(folder / "from_afar-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("from_afar.py", "print('hello from afar')\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: from-afar\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{info}/RECORD", "")


async def test_pip_installs_from_an_index_that_the_list_names(world: World, tmp_path: Path) -> None:
    make_wheel(tmp_path / "web" / "simple" / "from-afar")
    world.name("index.test")
    async with files(tmp_path / "web", host=str(world.here)) as port:
        box = await world.lease(allow=(f"index.test:{port}",))
        if "No module" in await box.shell("python3 -m pip --version"):
            pytest.skip("the image has no pip")
        said = await box.shell(
            "python3 -m pip install -q --disable-pip-version-check --target /tmp/t "
            f"--index-url http://index.test:{port}/simple/ --trusted-host index.test from-afar"
            " && PYTHONPATH=/tmp/t python3 -c 'import from_afar'"
        )
        assert said.endswith("hello from afar\n"), said
        bad = f"-i http://bad.test:{port}/ --trusted-host bad.test"
        assert "No matching" in await box.shell(f"python3 -m pip download --retries 0 {bad} x")
        assert f"bad.test:{port} is not on this sandbox's list" in box.refusals[-1]


async def test_git_clones_from_a_host_that_the_list_names(world: World, tmp_path: Path) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("there is no git on this machine")
    source, web = tmp_path / "source", tmp_path / "web"
    ours = {"GIT_CONFIG_GLOBAL": "/dev/null", "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    who = ["-c", "user.name=t", "-c", "user.email=t@t.test"]

    def run(*argv: str, cwd: Path) -> None:
        subprocess.run([git, *argv], cwd=cwd, check=True, env=ours, capture_output=True)

    source.mkdir()
    (source / "hello.txt").write_text("cloned\n")
    run("init", "-q", cwd=source)
    run("add", ".", cwd=source)
    run(*who, "commit", "-q", "-m", "one", cwd=source)
    run("clone", "-q", "--bare", str(source), str(web / "it.git"), cwd=tmp_path)
    run("update-server-info", cwd=web / "it.git")
    world.name("git.test")
    async with files(web, host=str(world.here)) as port:
        box = await world.lease(allow=(f"git.test:{port}",))
        if "git version" not in await box.shell("git --version"):
            pytest.skip("the image has no git")
        said = await box.shell(
            f"cd /tmp && git clone -q http://git.test:{port}/it.git && cat it/hello.txt"
        )
        assert said == "cloned\n"


async def test_the_set_up_of_a_template_reaches_what_the_template_may(
    world: World, maker: Maker, tmp_path: Path
) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "data").write_text("from outside\n")
    world.name("web.test")
    async with files(tmp_path / "web", host=str(world.here)) as port:
        fetch = (
            "import os, urllib.request as r; open('/tmp/data', 'wb').write("
            f"r.urlopen('http://web.test:{port}/data').read())"
        )
        network = Network(kind="allow", allow=(f"web.test:{port}", f"{world.here}:{port}"))
        spec = replace(
            world.template.spec,
            network=network,
            setup=Setup(commands=(f'python3 -c "{fetch}"',)),
        )
        world.template = replace(world.template, spec=spec)
        await world.rooms.take({"python": world.template})
        box = await world.lease(template_network=True)
        assert await box.shell("cat /tmp/data") == "from outside\n"
        assert await box.shell("env | grep -c http_proxy") == "1\n"
        narrowed = await world.lease()
        assert await narrowed.shell("cat /tmp/data; env | grep -c http_proxy") == (
            "from outside\n0\n"
        )


def test_a_daemon_that_was_killed_leads_out_again_but_knows_no_secret_any_more(
    tmp_path: Path,
) -> None:
    config = '[templates.python]\nimage = "host"\n'
    with (
        service(tmp_path, config=config) as daemon,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        url = f"127.0.0.1:{server.getsockname()[1]}"
        with Sandboxd(url=daemon.url) as client:
            sandbox = client.lease(
                "python",
                network={"allow": ["example.test"]},
                forwards={
                    8000: f"tcp://{url}",
                    8001: {"url": f"http://{url}", "headers": {"x-key": "s3cret"}},
                },
            )
            assert [f.ready for f in sandbox.forwards()] == [True, True]
        daemon.kill()
        assert b"s3cret" not in b"".join(path.read_bytes() for path in daemon.state.glob("leases*"))
        daemon.start()
        with Sandboxd(url=daemon.url) as client:
            again = client.sandbox(sandbox.id)
            talk = "exec 3<>/dev/tcp/127.0.0.1/8000; echo hello >&3; cat <&3"
            waiting = again.start(["bash", "-c", talk])
            server.settimeout(20)
            with server.accept()[0] as connection:
                assert connection.recv(100) == b"hello\n"
                connection.sendall(b"back\n")
            assert waiting.wait().stdout == "back\n"
            assert [f.ready for f in again.forwards()] == [True, False]
            request = "GET / HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n"
            ask = f"exec 3<>/dev/tcp/127.0.0.1/8001; printf '{request}' >&3; cat <&3"
            assert "502" in again.exec(["bash", "-c", ask]).stdout.split("\r\n")[0]
            info = again.info()
            assert (info.network, info.proxy) == (
                {"allow": ["example.test"]},
                "http://127.0.0.1:3128",
            )
            again.forward(8001, f"http://{url}", headers={"x-key": "s3cret"})
            assert all(f.ready for f in again.forwards())
            again.end_forward(8001)
            assert [f.port for f in again.forwards()] == [8000]
            assert again.set_network("none").proxy is None
            assert httpx.get(f"{daemon.url}/v1/sandboxes/{sandbox.id}").json()["network"] == "none"
            again.release()
