"""One daemon with a key on each backend, and sandboxes in it that are attacked from inside.

As root where the machine lets us, and as an ordinary user where there is one who can run us.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from sandboxd.linux.seccomp_profile import profile_for
from tests.conformance.conftest import local_gap
from tests.contract.columns import below_of, column_of
from tests.contract.speaker import Speaker
from tests.support.cluster import TestCluster
from tests.support.cluster_pods import cluster_table
from tests.support.daemon import RunningDaemon, User, run_daemon

KEY = "canary-of-a-key-6f1d"
ENVIRON = "canary-of-the-daemon-9c2e"

_CONFIG = """
[server]
api_keys = [{{name = "alice", key = "{key}"}}]
{table}
[templates.root]
image = "{image}"
resources = {{cpu = 1.0, memory_mb = 256, pids = 128, disk_mb = 256}}
pool = {{ready = 0, max = 8}}

[templates.none]
image = "{image}"
resources = {{cpu = 0.5, memory_mb = 256, pids = 128, disk_mb = 256}}
capabilities = "none"
pool = {{ready = 0, max = 4}}

[templates.wide]
image = "{image}"
resources = {{cpu = 1.0, memory_mb = 256, pids = 128, disk_mb = 256}}
network = "internet"
pool = {{ready = 0, max = 8}}

[templates.user]
image = "{image}"
resources = {{cpu = 1.0, memory_mb = 256, pids = 128, disk_mb = 256}}
{user}
pool = {{ready = 0, max = 4}}
"""

_USER = "local-user"  # an ordinary user's daemon
_MARKS = {
    "local": (),
    _USER: (),
    "docker": (pytest.mark.docker, pytest.mark.timeout(120)),
    "kubernetes": (pytest.mark.kubernetes, pytest.mark.timeout(120)),
}


@dataclass(frozen=True, slots=True)
class Yard:
    """A daemon, as its caller sees it. has_users: sandboxes may have users beside their root.

    walled: nothing leads out of a sandbox but through its guest. The tests' cluster keeps network
    policies and enforces none, so pods have what an enforcing one would take from them.
    """

    name: str
    daemon: RunningDaemon
    http: httpx.Client
    folder: Path
    has_users: bool
    walled: bool

    @property
    def port(self) -> int:
        """Where its API listens."""
        return int(self.daemon.url.rsplit(":", 1)[1])

    def lease(self, template: str, **fields: object) -> Speaker:
        """A sandbox, which ends with the daemon."""
        answer = self.http.post("/v1/sandboxes", json={"template": template, **fields})
        assert answer.status_code == 201, answer.text
        return Speaker(self.http, f"/v1/sandboxes/{answer.json()['id']}")


@cache
def ordinary_user() -> User | str:
    """Who runs a daemon without root's rights here, or why there is nobody."""
    if os.geteuid() != 0:
        return "not root: the daemon of `local` is an ordinary user's already"
    same = sys.version_info[:2]
    for program in (sys.executable, f"/usr/bin/python{same[0]}.{same[1]}"):
        user = User(number=65534, python=program)
        if user.can_run():
            return user
    return "no Python of this version that an ordinary user can run"


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=marks) for name, marks in _MARKS.items()],
)
def yard(request: pytest.FixtureRequest) -> Iterator[Yard]:
    """The daemon under attack."""
    name = str(request.param)
    backend, user = name.partition("-")[0], None
    if backend == "local" and (gap := local_gap()):
        pytest.skip(gap)
    if name == _USER:
        chosen = ordinary_user()
        if isinstance(chosen, str):
            pytest.skip(chosen)
        user = chosen
    has_users = backend != "local" or (os.geteuid() == 0 and user is None)
    below = below_of(backend, request)
    column = column_of(below)
    with ExitStack() as stack:
        table = column.table
        if isinstance(below, TestCluster):
            table = cluster_table(below, stack.enter_context(_profile_on_the_node()))
        config = _CONFIG.format(
            key=KEY,
            table=table,
            image=column.image,
            user='user = "1000"' if has_users else "",
        )
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="sbx-yard-")))
        environ = {"CANARY": ENVIRON}
        with run_daemon(folder, backend=backend, config=config, user=user, environ=environ) as ours:
            headers = {"Authorization": f"Bearer {KEY}"}
            with httpx.Client(base_url=ours.url, headers=headers, timeout=60) as http:
                yield Yard(name, ours, http, folder, has_users, walled=backend != "kubernetes")


@contextmanager
def _profile_on_the_node() -> Iterator[str]:
    """Our filter of system calls where a kubelet looks for it, whatever its own folder is; what the
    configuration says of that.
    """
    place = Path("/var/lib/kubelet/seccomp") / f"sandboxd-test-{os.getpid()}.json"
    made = [folder for folder in (place.parent.parent, place.parent) if not folder.exists()]
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        place.write_text(profile_for(os.uname().machine))
        yield f'seccomp_profile = "{place.name}"'
    finally:
        place.unlink(missing_ok=True)
        with suppress(OSError):  # somebody else's are there
            for folder in reversed(made):
                folder.rmdir()


KINDS = ["root", "user", "none"]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest, yard: Yard) -> str:
    """Whose rights the attacker has: root's inside, a user's, or root's with none."""
    if request.param == "user" and not yard.has_users:
        pytest.skip("one user id in each sandbox")
    return str(request.param)


@pytest.fixture(scope="module")
def box(yard: Yard, kind: str) -> Iterator[Speaker]:
    """A sandbox of that kind, which all attacks of a module must leave alive."""
    speaker = yard.lease(kind)
    yield speaker
    yard.http.delete(speaker.path)


@pytest.fixture(scope="module")
def root_box(yard: Yard) -> Iterator[Speaker]:
    """A sandbox whose commands have all the rights there are."""
    speaker = yard.lease("root")
    yield speaker
    yard.http.delete(speaker.path)
