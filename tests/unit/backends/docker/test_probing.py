"""What engines of several kinds say of themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sandboxd.backends.docker.probing import (
    Surroundings,
    box_owner,
    capabilities_of,
    has_gpu,
    has_seccomp,
    is_rootless,
)
from sandboxd.backends.protocol import LimitKind

INFO: dict[str, Any] = {
    "MemoryLimit": True,
    "SwapLimit": True,
    "CpuCfsQuota": True,
    "PidsLimit": True,
    "CgroupVersion": "1",
    "NCPU": 2,
    "MemTotal": 4 << 30,
    "DockerRootDir": "/no/such/place",
    "Runtimes": {"runc": {}, "kata": {}, "io.containerd.runc.v2": {}},
    "SecurityOptions": ["name=seccomp,profile=default"],
}
SEEN = Surroundings(internet=True, counts=True)


def test_a_whole_engine_holds_every_limit_but_that_on_the_disk() -> None:
    found = capabilities_of(INFO, SEEN)
    assert {**found.limits, "disk": None} == {
        "cpu": LimitKind.ENFORCED,
        "memory": LimitKind.ENFORCED,
        "pids": LimitKind.ENFORCED,
        "disk": None,
    }
    assert found.limits["disk"] is LimitKind.WATCHED
    assert found.runtimes == {"runc", "kata"}
    assert found.networks == {"none", "internet"}
    assert not found.direct_networks
    assert found.all_networks == {"none", "internet", "allow"}
    named = capabilities_of(INFO, replace(SEEN, named=True))
    assert named.direct_networks == {"internet"}
    far = capabilities_of(INFO, replace(SEEN, by_tcp=True))
    assert far.direct_networks == far.all_networks == {"internet"}
    assert found.most is not None
    assert (found.most.cpu, found.most.memory_mb) == (2.0, 4096)
    assert found.notes == ()


def test_what_an_engine_lacks_is_a_gap_with_its_mend_and_never_pretended() -> None:
    bare = {**INFO, "MemoryLimit": False, "SwapLimit": False, "SecurityOptions": None}
    found = capabilities_of(bare, Surroundings(internet=False, counts=False))
    assert found.limits["memory"] is LimitKind.NONE
    assert found.networks == {"none"}
    assert not found.oom_evidence
    assert len(found.notes) == 4


def test_security_options_are_read_by_name() -> None:
    assert has_seccomp(INFO)
    assert not has_seccomp({})
    assert is_rootless({"SecurityOptions": ["name=seccomp", "name=rootless"]})
    assert not is_rootless(INFO)


def test_a_mapped_engines_boxes_belong_to_its_range() -> None:
    mapped = {"SecurityOptions": ["name=userns"], "DockerRootDir": "/data/165536.165537"}
    assert box_owner(mapped) == (165536, 165537)
    assert box_owner(INFO) is None


def test_a_gpu_is_a_runtime_for_it_or_a_device_that_was_found() -> None:
    assert not has_gpu(INFO)
    assert not has_gpu({**INFO, "CDISpecDirs": ["/etc/cdi"]})
    assert has_gpu({**INFO, "Runtimes": {"nvidia": {}}})
    assert has_gpu({**INFO, "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]})
