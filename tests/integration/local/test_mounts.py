"""What a template lets boxes see of the machine, and the size of their /dev/shm."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from sandboxd.backends.local import LocalBackend, LocalSettings
from sandboxd.errors import SandboxdError
from sandboxd.model.template import Mount
from sandboxd.wire.codes import ErrorCode
from tests.integration.local.conftest import SPEC, order, sh

pytestmark = pytest.mark.anyio


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder of the machine with a file that is its owner's alone, and one that is not."""
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    (folder / "open").write_text("for all\n")
    (folder / "closed").write_text("for its owner\n")
    (folder / "closed").chmod(0o600)
    return folder


@pytest.fixture
def writable(shared: Path) -> Path:
    """The same folder, in which everybody may make files."""
    shared.chmod(0o1777)
    return shared


async def say(backend: LocalBackend, text: str, *mounts: Mount, shm_mb: int = 0) -> str:
    """Make a box with these mounts and run text in it: what it wrote, both streams."""
    spec = replace(SPEC, mounts=mounts, shm_mb=shm_mb)
    with anyio.fail_after(60):
        record = await sh(backend, await backend.make(order(spec)), text)
    return (record.stdout.head + record.stderr.head).decode()


async def test_a_folder_is_seen_and_not_written(backend: LocalBackend, shared: Path) -> None:
    mount = Mount(source=str(shared), target="/data/set")
    said = await say(
        backend, "cat /data/set/open /data/set/closed; touch /data/set/new; ls /data/set", mount
    )
    assert "for all\nfor its owner\n" in said
    assert "Read-only file system" in said
    assert not (shared / "new").exists()


async def test_a_file_is_seen_alone(backend: LocalBackend, shared: Path) -> None:
    mount = Mount(source=str(shared / "open"), target="/etc/given/name.txt")
    said = await say(backend, "cat /etc/given/name.txt; ls /etc/given", mount)
    assert said == "for all\nname.txt\n"


async def test_what_is_written_lies_on_the_machine_under_the_boxes_own_ids(
    backend: LocalBackend, writable: Path, settings: LocalSettings
) -> None:
    mount = Mount(source=str(writable), target="/out", read_only=False)
    said = await say(
        backend,
        "cp /bin/true /out/made && chmod 4755 /out/made && cat /out/open; cat /out/closed",
        mount,
    )
    owner = (writable / "made").stat().st_uid
    if os.geteuid() == 0:
        assert said.startswith("for all\n")
        assert "for its owner" not in said  # the machine's root is nobody inside
        assert owner == settings.first_id
    else:
        assert said == "for all\nfor its owner\n"
        assert owner == os.geteuid()


async def test_boxes_share_what_they_may_write(backend: LocalBackend, writable: Path) -> None:
    mount = Mount(source=str(writable), target="/out", read_only=False)
    await say(backend, "echo first > /out/word", mount)
    assert await say(backend, "cat /out/word", mount) == "first\n"


async def test_a_source_that_is_not_there_fails_the_make_by_name(
    backend: LocalBackend, tmp_path: Path
) -> None:
    gone = str(tmp_path / "gone")
    with pytest.raises(SandboxdError) as caught:
        await say(backend, "true", Mount(source=gone, target="/data"))
    assert caught.value.code is ErrorCode.START_FAILED
    assert f"mount {gone} on /data: No such file or directory" in caught.value.detail
    assert await backend.list_owned() == []


async def test_nothing_shows_the_daemon_s_own_files(
    backend: LocalBackend, settings: LocalSettings, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(settings.state_dir)
    for source in ("/", str(tmp_path), str(settings.state_dir / "boxes"), str(tmp_path / "link")):
        with pytest.raises(SandboxdError) as caught:
            await say(backend, "true", Mount(source=source, target="/data"))
        assert "the daemon's own files" in caught.value.detail


@pytest.mark.requirement("RL-07")
async def test_shared_memory_holds_what_data_loaders_need(backend: LocalBackend) -> None:
    fill = "dd if=/dev/zero of=/dev/shm/x bs=1M count=200 2>/dev/null && stat -c %s /dev/shm/x"
    assert await say(backend, fill) == f"{200 << 20}\n"


async def test_shared_memory_has_the_size_that_the_template_gives(backend: LocalBackend) -> None:
    said = await say(
        backend, "dd if=/dev/zero of=/dev/shm/x bs=1M count=20; df -m /dev/shm", shm_mb=8
    )
    assert "No space left on device" in said
    assert " 8 " in said
