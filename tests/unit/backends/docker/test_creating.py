"""The body that an engine is sent: every limit and every right of a box is decided in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sandboxd.backends.docker.creating import ContainerPlan, container_body, container_name
from sandboxd.backends.docker.reaching.way import Door
from sandboxd.backends.protocol import BoxOrder
from sandboxd.linux.cgroups import GUEST_PIDS
from sandboxd.model.template import BoxSpec, Mount, Resources

PLAN = ContainerPlan(
    order=BoxOrder(
        box_id="box-1",
        spec=BoxSpec(image="x", resources=Resources(cpu=0.5, memory_mb=64, pids=50)),
        labels={"pool": "p"},
    ),
    installation="here",
    image="sha256:1",
    user="",
    env=("PATH=/bin", "GOMAXPROCS=99", "GOOD=1"),
    door=Door(arguments=("--socket", "/s"), mounts=(Mount(source="/run/b", target="/run/guest"),)),
    network="none",
)


def host(plan: ContainerPlan = PLAN) -> dict[str, Any]:
    config: dict[str, Any] = container_body(plan)["HostConfig"]
    return config


def with_spec(**changes: Any) -> ContainerPlan:
    return replace(PLAN, order=replace(PLAN.order, spec=replace(PLAN.order.spec, **changes)))


def test_a_name_says_whose_it_is_and_labels_come_with_the_call() -> None:
    assert container_name("abc", "box-1") == "sandboxd-abc-box-1"
    labels = container_body(PLAN)["Labels"]
    assert (labels["sandboxd.installation"], labels["sandboxd.box"]) == ("here", "box-1")
    assert labels["sandboxd.label.pool"] == "p"


def test_limits_are_the_templates_and_leave_room_for_the_guest() -> None:
    config = host()
    assert config["Memory"] == config["MemorySwap"] == 64 << 20
    assert config["PidsLimit"] == 50 + GUEST_PIDS
    assert config["NanoCpus"] == 500_000_000
    assert config["ShmSize"] == 32 << 20
    assert host(with_spec(shm_mb=8))["ShmSize"] == 8 << 20


def test_rights_are_those_of_every_sandbox_and_no_others() -> None:
    config = host()
    assert config["CapDrop"] == ["ALL"]
    assert "SETUID" in config["CapAdd"]
    assert not {"SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE"} & set(config["CapAdd"])
    assert "Privileged" not in config
    assert host(replace(PLAN, seccomp="{}"))["SecurityOpt"] == ["seccomp={}"]
    assert config["SecurityOpt"] == []


def test_nothing_of_the_image_runs_beside_the_guest_and_nothing_starts_it_again() -> None:
    body = container_body(PLAN)
    assert body["Healthcheck"] == {"Test": ["NONE"]}
    assert body["Entrypoint"] == ["/run/sandbox-guest"]
    assert body["HostConfig"]["RestartPolicy"] == {"Name": "no"}
    assert body["HostConfig"]["LogConfig"]["Type"] == "none"


def test_the_images_user_is_the_commands_and_never_the_guests() -> None:
    body = container_body(replace(PLAN, user="agent"))
    assert body["User"] == "0:0"
    assert body["Cmd"][-2:] == ["--user", "agent"]
    assert "--user" not in container_body(PLAN)["Cmd"]


def test_folders_are_mounts_which_the_engine_never_makes_itself() -> None:
    plan = with_spec(mounts=(Mount(source="/data", target="/in"),))
    *_, last = host(plan)["Mounts"]
    assert last == {"Type": "bind", "Source": "/data", "Target": "/in", "ReadOnly": True}
    assert "Binds" not in host(plan)


def test_gpus_and_runtimes_are_asked_for_by_name() -> None:
    assert host()["DeviceRequests"] == []
    config = host(with_spec(resources=Resources(gpu=2), runtime="runsc"))
    assert config["DeviceRequests"] == [{"Count": 2, "Capabilities": [["gpu"]]}]
    assert config["Runtime"] == "runsc"


def test_what_the_guest_would_read_itself_is_handed_on_to_commands_by_another_name() -> None:
    assert container_body(PLAN)["Env"] == ["GOMAXPROCS=", "SANDBOX_GUEST_KEPT_GOMAXPROCS=99"]
    assert container_body(replace(PLAN, env=("PATH=/bin",)))["Env"] == []
