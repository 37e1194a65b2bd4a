"""The matrix: every check below runs against every maker of boxes that this machine can have.

To add a maker: write `open_it(directory)`, an async context manager that yields an opened backend
and leaves nothing behind, and name it in MATRIX. A check that a maker cannot pass asks its
capabilities and skips with the reason; there is no list of known failures.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import anyio
import pytest

from sandboxd.backends.docker import DockerSettings, open_docker
from sandboxd.backends.fake import FakeSettings, open_fake
from sandboxd.backends.kubernetes import KubernetesSettings, open_kubernetes
from sandboxd.backends.kubernetes.settings import Way
from sandboxd.backends.local import LocalSettings, open_local
from sandboxd.backends.local.doctor import probe
from sandboxd.backends.protocol import Backend, BoxOrder, BoxRef
from sandboxd.guest import Guest
from sandboxd.guest.run_dir import default_run_dir
from sandboxd.model.claim import Claim
from sandboxd.model.ids import new_id
from sandboxd.model.template import BoxSpec, Network, Resources
from tests.conftest import EngineHost, Loop, asyncio_loop, jumping_loop
from tests.support.cluster import GUEST_IMAGE, POD_IMAGE, TestCluster
from tests.support.local_traces import traces


@dataclass(frozen=True)
class Maker:
    """One column of the matrix.

    image: what a box is made of. network: the least that boxes can have. loop: real or virtual
    time. missing: why this machine cannot have it; "" if it can. needs: the fixture of a container
    engine that it is of, which also has the image. guest: on a cluster, how guests are reached.
    """

    open: Callable[[Path], AbstractAsyncContextManager[Backend]]
    image: str = "host"
    network: Literal["none", "internet"] = "none"
    needs: str = ""
    guest: Way | None = None
    loop: Callable[[], Loop] = asyncio_loop
    missing: Callable[[], str] = lambda: ""


@asynccontextmanager
async def open_fake_backend(_directory: Path) -> AsyncIterator[Backend]:
    """The fake as users get it."""
    async with open_fake(FakeSettings()) as backend:
        yield backend


@asynccontextmanager
async def open_local_backend(directory: Path) -> AsyncIterator[Backend]:
    """This machine's own, with its rounds of measuring close together."""
    # The installation's name is what tells one test's run directory and groups from another's.
    settings = LocalSettings(state_dir=directory, installation=new_id("t")[2:14], disk_every_s=0.2)
    async with open_local(settings) as backend:
        yield backend
    assert traces(settings) == []


def open_nowhere(_directory: Path) -> AbstractAsyncContextManager[Backend]:
    """Stands in the matrix for what is opened only once there is an engine."""
    raise AssertionError("no engine yet")


@asynccontextmanager
async def open_docker_backend(directory: Path, engine: EngineHost) -> AsyncIterator[Backend]:
    """On an engine of the tests' own, with its rounds of measuring close together."""
    settings = DockerSettings(
        state_dir=directory,
        installation=new_id("t")[2:14],
        host=engine.host,
        disk_every_s=0.2,
        secret=b"of these checks alone",
    )
    async with open_docker(settings) as backend:
        yield backend
    assert not default_run_dir(settings.installation).exists()


@asynccontextmanager
async def open_kubernetes_backend(cluster: TestCluster, guest: Way) -> AsyncIterator[Backend]:
    """On a cluster of the tests' own, under a name of its own; pods ask for next to nothing."""
    settings = KubernetesSettings(
        installation=new_id("t")[2:14],
        guest_image=GUEST_IMAGE,
        kubeconfig=cluster.kubeconfig,
        guest=guest,
        network_policy="none",
        cpu_request=0.01,
        memory_request=0.1,
        prefetch_images=True,
        secret=b"of these checks alone",
    )
    async with open_kubernetes(settings) as backend:
        yield backend


def local_gap() -> str:
    """Why this machine has no local backend."""
    with TemporaryDirectory() as directory:
        settings = LocalSettings(state_dir=Path(directory), installation=new_id("t")[2:14])
        gaps = [finding for finding in probe(settings, max_sandboxes=8) if not finding.ok]
    return "; ".join(f"{gap.detail} ({gap.mend})" for gap in gaps if gap.vital)


MATRIX: dict[str, Maker] = {
    "fake": Maker(open=open_fake_backend),
    "fake-virtual": Maker(open=open_fake_backend, loop=jumping_loop),
    "local": Maker(open=open_local_backend, missing=cache(local_gap)),
    "docker": Maker(open=open_nowhere, needs="engine_host"),
    "docker-tcp": Maker(open=open_nowhere, network="internet", needs="far_engine_host"),
    "kubernetes": Maker(open=open_nowhere, image=POD_IMAGE, network="internet", guest="address"),
    "kubernetes-forward": Maker(
        open=open_nowhere, image=POD_IMAGE, network="internet", guest="forward"
    ),
    "podman": Maker(open=open_nowhere, needs="podman_host"),
}


def _marks(made: Maker) -> list[pytest.MarkDecorator]:
    patience = pytest.mark.timeout(120)
    if made.guest is not None:
        rare = [pytest.mark.slow] if made.guest == "forward" else []
        return [pytest.mark.kubernetes, *rare, patience]
    rare = [] if made.needs == "engine_host" else [pytest.mark.slow, patience]
    return [pytest.mark.docker, *rare] if made.needs else []


COLUMNS = [pytest.param(name, marks=_marks(made)) for name, made in sorted(MATRIX.items())]


@pytest.fixture(params=COLUMNS)
def maker(request: pytest.FixtureRequest) -> Maker:
    """The maker under test."""
    chosen = MATRIX[request.param]
    if chosen.needs:
        engine: EngineHost = request.getfixturevalue(chosen.needs)
        return replace(
            chosen, open=lambda place: open_docker_backend(place, engine), image=engine.image
        )
    if (guest := chosen.guest) is not None:
        cluster: TestCluster = request.getfixturevalue("cluster")
        return replace(chosen, open=lambda _: open_kubernetes_backend(cluster, guest))
    if reason := chosen.missing():
        pytest.skip(reason)
    return chosen


@pytest.fixture
def anyio_backend(maker: Maker) -> Loop:
    """The loop that this maker needs."""
    return maker.loop()


@pytest.fixture
async def backend(maker: Maker, tmp_path: Path) -> AsyncIterator[Backend]:
    """An opened backend with no box in it; whatever a test leaves in it is disposed of."""
    async with maker.open(tmp_path) as opened:
        yield opened
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for box in await opened.list_owned():
                    if box.ref is not None:
                        tasks.start_soon(opened.dispose, box.ref)
                    else:
                        tasks.start_soon(opened.dispose_remains, box.box_id)


@pytest.fixture
def spec(maker: Maker) -> BoxSpec:
    """What the boxes of these checks are made of."""
    return BoxSpec(
        image=maker.image,
        network=Network(kind=maker.network),
        resources=Resources(memory_mb=512, pids=128, disk_mb=512),
    )


def order(spec: BoxSpec) -> BoxOrder:
    """An order for a box of that spec, under a fresh id."""
    labels = {"installation": "conformance", "pool": "checks", "made_at": "0"}
    return BoxOrder(box_id=new_id("box"), spec=spec, labels=labels)


@pytest.fixture
async def box(backend: Backend, spec: BoxSpec) -> BoxRef:
    """A box that nobody has claimed."""
    with anyio.fail_after(30):
        return await backend.make(order(spec))


@pytest.fixture
async def guest(backend: Backend, box: BoxRef) -> AsyncIterator[Guest]:
    """The guest of a box that is leased to the test."""
    opened = Guest(lambda: backend.connect(box))
    try:
        with anyio.fail_after(10):
            await opened.claim(Claim(lease_id=new_id("sbx"), workdir="/workspace", life_s=600))
        yield opened
    finally:
        await opened.aclose()
