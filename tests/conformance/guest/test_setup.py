"""What is run before anybody leases a box, and that nothing of it shows but what it made."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.backends.protocol import Backend, BoxRef
from sandboxd.errors import SandboxdError
from sandboxd.guest import Guest
from sandboxd.model.claim import Claim
from sandboxd.model.template import Setup
from sandboxd.pool.setting_up import declare_ready, set_up
from sandboxd.wire.codes import ErrorCode, Fault
from tests.conformance.guest.steps import command, end_of, run, sh, start


@pytest.fixture
async def fresh(backend: Backend, box: BoxRef) -> Guest:
    """The guest of a box that nobody has set up or leased. It keeps no connection."""
    guest = Guest(lambda: backend.connect(box))
    await guest.aclose()
    return guest


async def test_a_set_up_leaves_its_files_and_nothing_else(fresh: Guest) -> None:
    setup = Setup(
        commands=("printf $WORD > made", "pwd; echo heard >&2"),
        env=(("WORD", "yes"),),
        workdir="/srv/of/setup",
    )
    with anyio.fail_after(20):
        assert not (await fresh.hello()).ready
        diary = await set_up(fresh, setup)
        await declare_ready(fresh)
        assert (await fresh.hello()).ready
        await fresh.claim(Claim(lease_id="sbx-1", workdir="/srv/of/setup"))
        assert await fresh.list_execs() == []
    assert [entry["stdout"] for entry in diary] == ["", "/srv/of/setup\n"]
    assert diary[1]["stderr"] == "heard\n"
    record = await sh(fresh, 'cat made; echo " <$WORD>"', exec_id="setup-1")
    assert record.stdout.head == b"yes <>\n"


async def test_a_box_is_not_leased_before_its_set_up_has_ended(fresh: Guest) -> None:
    with anyio.fail_after(20):
        await fresh.begin_setup(Setup(workdir="/srv/early"))
        with pytest.raises(SandboxdError) as refused:
            await fresh.claim(Claim(lease_id="sbx-1"))
        assert refused.value.code is ErrorCode.CONFLICT
        exec_id = await start(fresh, command("sleep", "60"))
        with pytest.raises(SandboxdError) as refused:
            await fresh.end_setup()
        assert refused.value.code is ErrorCode.CONFLICT
        await fresh.signal(exec_id, "KILL")
        await end_of(fresh, exec_id)
        await fresh.end_setup()
        await fresh.end_setup()
        with pytest.raises(SandboxdError) as refused:
            await fresh.begin_setup(Setup())
        assert refused.value.code is ErrorCode.CONFLICT
        await fresh.claim(Claim(lease_id="sbx-1"))
    assert (await run(fresh, command("true"))).exit_code == 0


async def test_a_set_up_that_fails_leaves_a_box_that_nobody_can_lease(fresh: Guest) -> None:
    setup = Setup(commands=("echo why >&2; exit 9", "true"), workdir="/srv/x")
    with anyio.fail_after(20):
        with pytest.raises(SandboxdError) as failed:
            await set_up(fresh, setup)
        with pytest.raises(SandboxdError):
            await fresh.claim(Claim(lease_id="sbx-1"))
        assert not (await fresh.hello()).ready
    error = failed.value
    assert (error.code, error.fault, error.mask) == (ErrorCode.START_FAILED, Fault.TASK, True)
    assert error.details["exit_code"] == 9
    assert error.details["output_tail"] == "why\n"


async def test_a_set_up_that_does_not_end_is_ended(fresh: Guest) -> None:
    setup = Setup(commands=("echo begun; sleep 60",), workdir="/srv/x", timeout_s=1)
    with anyio.fail_after(30), pytest.raises(SandboxdError) as failed:
        await set_up(fresh, setup)
    assert failed.value.fault is Fault.TASK
    assert failed.value.details["outcome"] == "timeout"
    assert failed.value.details["output_tail"] == "begun\n"
