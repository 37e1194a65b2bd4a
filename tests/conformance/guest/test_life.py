"""Claims, life and loss: whose a box is, when it ends by itself, how a loss is told."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.backends.protocol import Backend, BoxRef
from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest, GuestLost
from sandboxd.guest.messages import PROTOCOLS
from sandboxd.model.claim import Claim, ClaimFile
from sandboxd.wire.codes import ErrorCode
from tests.conformance.guest.steps import command, run, script, sh, start, until


@pytest.fixture
async def unclaimed(backend: Backend, box: BoxRef) -> Guest:
    """The guest of a box that nobody has leased. It keeps no connection."""
    guest = Guest(lambda: backend.connect(box))
    await guest.aclose()
    return guest


async def test_hello_tells_whose_the_box_is(unclaimed: Guest) -> None:
    with anyio.fail_after(10):
        before = await unclaimed.hello()
        await unclaimed.claim(Claim(lease_id="sbx-1", life_s=100))
        after = await unclaimed.hello()
    assert (before.lease_id, after.lease_id) == ("", "sbx-1")
    assert before.boot_id == after.boot_id != ""
    assert set(PROTOCOLS) == set(after.protocols)
    assert after.life_left_s is not None
    assert 90 < after.life_left_s <= 100


async def test_box_is_claimed_once(unclaimed: Guest) -> None:
    claim = Claim(lease_id="sbx-1", env={"A": "1"})
    with anyio.fail_after(10):
        await unclaimed.claim(claim)
        await unclaimed.claim(claim)
        with pytest.raises(SandboxdError) as refused:
            await unclaimed.claim(Claim(lease_id="sbx-2", env={"A": "2"}))
    assert refused.value.code is ErrorCode.CONFLICT
    assert (await run(unclaimed, command("printenv", "A"))).stdout.head == b"1\n"


async def test_what_a_claim_brings_is_there_for_the_first_command(unclaimed: Guest) -> None:
    claim = Claim(
        lease_id="sbx-1",
        env={"FROM": "claim", "KEPT": "yes"},
        workdir="/srv/made/here",
        files=(
            ClaimFile(path="/etc/one", data=b"1\n"),
            ClaimFile(path="sub/run", data=b"#!/bin/sh\necho $FROM $KEPT\n", mode=0o755),
        ),
    )
    with anyio.fail_after(10):
        await unclaimed.claim(claim)
    record = await sh(unclaimed, "pwd; cat /etc/one; sub/run", env={"FROM": "command"})
    assert record.stdout.head == b"/srv/made/here\n1\ncommand yes\n"


async def test_guest_ends_at_its_hard_end_by_itself(
    guest: Guest, backend: Backend, box: BoxRef
) -> None:
    await start(guest, command("sleep", "1000"))
    with anyio.fail_after(10):
        await guest.renew(life_s=0.3)

    async def is_dead() -> bool:
        return await backend.look(box) is not None

    await until(is_dead)
    with anyio.fail_after(5), pytest.raises((SandboxdError, GuestLost)):
        await guest.hello()


async def test_renewed_life_is_longer(guest: Guest) -> None:
    with anyio.fail_after(10):
        await guest.renew(life_s=0.5)
        await guest.renew(life_s=500)
        await anyio.sleep(1)
        left = (await guest.hello()).life_left_s
        assert left is not None
        assert 490 < left < 500
        await guest.renew(life_s=None)
        assert (await guest.hello()).life_left_s is None


async def test_readings_have_what_can_be_had(guest: Guest) -> None:
    with anyio.fail_after(5):
        readings = await guest.readings()
    assert readings.memory_bytes is None or readings.memory_bytes > 0


@pytest.mark.requirement("ST-09")
async def test_box_that_dies_under_a_call_is_never_an_answer(
    guest: Guest, backend: Backend, box: BoxRef
) -> None:
    """ST-09."""
    order = script("echo a; sleep 1000")
    await start(guest, order)
    lost: list[SandboxdError | GuestLost] = []

    async def wait() -> None:
        try:
            await guest.run(order, wait=True)
        except (SandboxdError, GuestLost) as error:
            lost.append(error)

    async def follow() -> None:
        try:
            async with guest.attach(order.exec_id) as attachment:
                async for _ in attachment:
                    pass
        except (SandboxdError, GuestLost) as error:
            lost.append(error)

    with anyio.fail_after(15):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            group.start_soon(follow)
            await anyio.sleep(0.1)
            await backend.dispose(box)
    assert len(lost) == 2
    for error in lost:
        if isinstance(error, GuestLost):
            assert error.sent
        else:
            assert error.code is ErrorCode.SANDBOX_LOST
