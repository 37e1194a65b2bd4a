"""A box from an unpacked image: its root may change all of it, and the image stays as it is."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from sandboxd.backends.local import LocalBackend
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode, Fault
from tests.integration.local.conftest import SPEC, order, sh

pytestmark = pytest.mark.anyio

PROGRAMS = ("sh", "cat", "ls", "rm", "touch", "stat", "chmod")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A small root: a few programs of this machine, and the libraries they need."""
    root = tmp_path / "image"
    for name in ("bin", "etc", "usr/bin"):
        (root / name).mkdir(parents=True)
    for program in PROGRAMS:
        found = shutil.which(program)
        assert found is not None
        shutil.copy(found, root / "bin" / program)
        told = subprocess.run(["ldd", found], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+) \(0x", told):
            target = root / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
    (root / "etc" / "name").write_text("the image\n")
    (root / "etc" / "closed").write_text("root's own\n")
    (root / "etc" / "closed").chmod(0o600)
    return root


async def test_the_boxs_root_owns_the_image_and_changes_only_its_own_copy(
    backend: LocalBackend, image: Path
) -> None:
    with anyio.fail_after(30):
        box = await backend.make(order(replace(SPEC, image=str(image))))
    record = await sh(
        backend,
        box,
        "cat /etc/name /etc/closed && stat -c %u /bin/sh && echo new > /etc/name && rm /etc/closed"
        " && chmod 700 /bin/ls && touch /bin/fresh && cat /etc/name",
    )
    assert record.stderr.head == b""
    assert record.stdout.head == b"the image\nroot's own\n0\nnew\n"
    assert (image / "etc" / "name").read_text() == "the image\n"
    assert (image / "etc" / "closed").exists()
    assert not (image / "bin" / "fresh").exists()


async def test_two_boxes_of_an_image_share_nothing_that_they_write(
    backend: LocalBackend, image: Path
) -> None:
    spec = replace(SPEC, image=str(image))
    with anyio.fail_after(30):
        first, second = await backend.make(order(spec)), await backend.make(order(spec))
    await sh(backend, first, "echo mine > /etc/name")
    assert (await sh(backend, second, "cat /etc/name")).stdout.head == b"the image\n"


@pytest.mark.parametrize("image_name", ["python:3.11", "/", "relative/root", "/proc", "/dev/null"])
async def test_what_is_no_root_is_refused_with_the_mend(
    backend: LocalBackend, image_name: str
) -> None:
    with pytest.raises(SandboxdError) as caught, anyio.fail_after(30):
        await backend.make(order(replace(SPEC, image=image_name)))
    assert (caught.value.code, caught.value.fault) == (ErrorCode.IMAGE_UNAVAILABLE, Fault.TASK)
    assert image_name in caught.value.detail
    assert await backend.list_owned() == []
