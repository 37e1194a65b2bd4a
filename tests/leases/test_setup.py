"""A template's set-up: run once before a box is warm, out of sight of the lease that gets it."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from sandboxd.backends.protocol import BoxOrder
from sandboxd.errors import SandboxdError
from sandboxd.model.box import BoxState
from sandboxd.model.template import BoxSpec, Setup, Template
from sandboxd.wire.codes import EndReason, ErrorCode, Fault
from tests.support.front import Front, World, template

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


def with_setup(*commands: str, ready: int = 1, timeout_s: float = 300) -> Template:
    setup = Setup(
        commands=commands,
        env=(("FOR_ALL", "yes"),),
        workdir="/workspace/deep",
        timeout_s=timeout_s,
    )
    spec = BoxSpec(image="host", setup=setup)
    return template(
        ready=ready, spec=spec, env={"FOR_ALL": "yes"}, workdir="/workspace/deep", max=4
    )


async def refused(front: Front) -> SandboxdError:
    with pytest.raises(SandboxdError) as caught:
        await front.lease()
    return caught.value


async def test_the_lease_finds_what_was_set_up_and_no_trace_of_how(world: World) -> None:
    async with world.daemon(
        with_setup("printf $FOR_ALL > made", "echo out; echo err >&2")
    ) as front:
        await front.full()
        await anyio.sleep(1000)
        lease = await front.lease()
        assert lease.warm
        assert (await front.run(lease, "cat", "made", exec_id="setup-1")).stdout.head == b"yes"
        guest = front.tenancy(lease).guest
        assert [record.exec_id for record in await guest.list_execs()] == ["setup-1"]
        assert front.now(lease).usage.execs == 1


async def test_the_lease_s_log_begins_with_the_set_up_and_its_output(world: World) -> None:
    async with world.daemon(with_setup("echo out; echo err >&2", "true")) as front:
        diary = list(front.tenancy(await front.lease()).diary)
        assert [entry["event"] for entry in diary] == ["setup", "setup", "leased"]
        first = diary[0]
        assert (first["stdout"], first["stderr"], first["exit_code"]) == ("out\n", "err\n", 0)
        assert first["command"] == "echo out; echo err >&2"
        assert first["at"] <= diary[2]["at"]


async def test_what_a_set_up_writes_is_bounded_in_the_log(world: World) -> None:
    loud = "head -c 100000 /dev/zero"
    async with world.daemon(with_setup(*[loud] * 20)) as front:
        diary = front.tenancy(await front.lease()).diary
        written = [len(entry["stdout"]) for entry in diary if entry["event"] == "setup"]
        assert len(written) == 20
        assert 0 < sum(written) < 70_000
        assert all(entry["truncated"] for entry in diary if entry["event"] == "setup")


async def test_a_failing_set_up_is_the_task_s_fault_with_the_end_of_its_output(
    world: World,
) -> None:
    async with world.daemon(with_setup("true", "echo no such package >&2; exit 7")) as front:
        error = await refused(front)
        assert (error.code, error.fault, error.mask) == (ErrorCode.START_FAILED, Fault.TASK, True)
        assert error.details["number"] == 2
        assert error.details["exit_code"] == 7
        assert error.details["output_tail"] == "no such package\n"
        assert "set-up command 2 of 2" in error.detail
        assert error.detail.endswith("exited with 7: no such package")
        status = front.rooms.house.pools["python"].status()
        assert status.last_error == str(error)
        assert status.ready == 0
        await anyio.sleep(1)
        assert await front.box_ids() == set()


async def test_a_failing_set_up_of_a_lease_that_is_not_waited_for_is_make_failed(
    world: World,
) -> None:
    async with world.daemon(with_setup("exit 3", ready=0)) as front:
        lease = await front.lease(wait=False)
        with anyio.fail_after(10):
            await front.tenancy(lease).settled.wait()
        end = front.now(lease).end
        assert end is not None
        assert (end.reason, end.code, end.fault, end.mask) == (
            EndReason.MAKE_FAILED,
            ErrorCode.START_FAILED,
            Fault.TASK,
            True,
        )


async def test_failing_set_ups_are_backed_off(world: World) -> None:
    async with world.daemon(with_setup("sleep 0.5; false")) as front:
        made: set[str] = set()
        for _ in range(1200):  # two minutes
            made |= await front.box_ids()
            await anyio.sleep(0.1)
        assert 1 < len(made) < 20


async def test_a_set_up_that_takes_too_long_fails(world: World) -> None:
    async with world.daemon(with_setup("sleep 20", "sleep 20", timeout_s=30, ready=0)) as front:
        began = anyio.current_time()
        error = await refused(front)
        assert 29 < anyio.current_time() - began < 40
        assert (error.code, error.fault) == (ErrorCode.START_FAILED, Fault.TASK)
        assert "setup_timeout_s" in error.detail


async def test_a_user_that_is_not_there_is_the_task_s_fault(world: World) -> None:
    spec = BoxSpec(image="host", setup=Setup(commands=("true",), user="nemo"))
    async with world.daemon(template(spec=spec)) as front:
        error = await refused(front)
        assert (error.code, error.fault) == (ErrorCode.START_FAILED, Fault.TASK)
        assert "nemo" in error.detail


async def test_a_box_that_dies_during_its_set_up_says_of_what(world: World) -> None:
    async with world.daemon(with_setup("sleep 60", ready=0)) as front:
        async with anyio.create_task_group() as tasks:

            async def kill() -> None:
                # The backend has no event for it.
                while not (boxes := await front.box_ids()):  # noqa: ASYNC110
                    await anyio.sleep(0.1)
                await anyio.sleep(5)
                front.backend.die(boxes.pop(), EndReason.OOM)

            tasks.start_soon(kill)
            error = await refused(front)
        assert (error.code, error.fault, error.mask) == (ErrorCode.START_FAILED, Fault.TASK, True)
        assert error.details["reason"] == "oom"


async def test_a_box_whose_set_up_a_crash_cut_short_is_never_stock(world: World) -> None:
    pool = with_setup("echo half > half", "sleep 60", "echo whole > whole")
    async with world.daemon(pool) as front:
        await anyio.sleep(30)  # it is in the middle
        cut = await front.box_ids()
        assert len(cut) == 1
    async with world.daemon(pool) as front:
        lease = await front.lease(wait_timeout_s=200)
        assert lease.box is not None
        assert lease.box.box_id not in cut
        assert (await front.run(lease, "cat", "whole")).stdout.head == b"whole\n"
        assert not await front.box_ids() & cut


async def test_a_box_that_a_crash_left_before_its_set_up_began_is_never_stock(
    world: World,
) -> None:
    plain = with_setup("true")
    async with world.daemon(plain) as front:
        await front.full()
        (labels,) = [box.labels for box in await world.backend.list_owned()]
    await bare_box(world, labels=dict(labels), spec=plain.spec)
    async with world.daemon(plain) as front:
        await anyio.sleep(5)
        assert "box-bare" not in await front.box_ids()
        assert front.rooms.house.pools["python"].stock.count(BoxState.WARM) == 1


async def test_finished_stock_survives_a_restart(world: World) -> None:
    async with world.daemon(with_setup("true")) as front:
        await front.full()
        before = await front.box_ids()
    async with world.daemon(with_setup("true")) as front:
        await anyio.sleep(5)
        assert await front.box_ids() == before
        assert (await front.lease()).warm


async def test_another_set_up_replaces_the_stock(world: World) -> None:
    async with world.daemon(with_setup("true")) as front:
        await front.full()
        old = await front.box_ids()
        await front.rooms.take({"python": replace(with_setup("echo", "true"))})
        await anyio.sleep(5)
        await front.full()
        assert not await front.box_ids() & old


async def bare_box(world: World, *, labels: dict[str, str], spec: BoxSpec) -> None:
    """What a daemon leaves that is killed between the make and the first word of the set-up."""
    await world.backend.make(BoxOrder(box_id="box-bare", spec=spec, labels=labels))
