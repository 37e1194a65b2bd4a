"""What tests can script on the fake: makes that fail, hang or come late; deaths; cut lines."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from sandboxd.backends.fake import FakeBackend, FakeSettings, Process, open_fake
from sandboxd.backends.protocol import BoxOrder, Death
from sandboxd.errors import SandboxdError
from sandboxd.guest import Attachment, Gap, Guest, GuestLost, OutputEvent
from sandboxd.model.claim import Claim
from sandboxd.model.command import Command
from sandboxd.model.template import BoxSpec, Network, Resources
from sandboxd.wire.codes import EndReason, ErrorCode, Fault, Outcome

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


def order(**spec: Any) -> BoxOrder:
    spec = {"image": "any", "resources": Resources(disk_mb=32), **spec}
    return BoxOrder(box_id="box-1", spec=BoxSpec(**spec), labels={"pool": "p"})


async def to_its_end(attachment: Attachment) -> list[OutputEvent]:
    return [event async for event in attachment]


async def leased(backend: FakeBackend, *, life_s: float | None = None) -> Guest:
    ref = await backend.make(order())
    guest = Guest(lambda: backend.connect(ref))
    await guest.claim(Claim(lease_id="sbx-1", life_s=life_s))
    return guest


async def test_make_fails_as_often_as_scripted() -> None:
    async with open_fake() as backend:
        backend.faults.fail_next_make(ErrorCode.IMAGE_UNAVAILABLE, fault=Fault.TASK, times=2)
        for _ in range(2):
            with pytest.raises(SandboxdError) as failed:
                await backend.make(order())
            assert (failed.value.code, failed.value.fault) == (
                ErrorCode.IMAGE_UNAVAILABLE,
                Fault.TASK,
            )
        await backend.make(order())
        assert len(await backend.list_owned()) == 1


async def test_make_that_hangs_leaves_nothing_once_cancelled() -> None:
    async with open_fake() as backend:
        backend.faults.hang_next_make()
        with anyio.move_on_after(60) as scope:
            await backend.make(order())
        assert scope.cancelled_caught
        assert await backend.list_owned() == []


async def test_make_that_is_late_shows_its_box_after_the_caller_gave_up() -> None:
    async with open_fake() as backend:
        backend.faults.late_next_make()
        with anyio.move_on_after(60):
            await backend.make(order())
        [owned] = await backend.list_owned()
        assert (owned.box_id, owned.alive, owned.labels) == ("box-1", True, {"pool": "p"})
        assert owned.ref is not None
        await backend.dispose(owned.ref)
        assert await backend.list_owned() == []


async def test_box_that_dies_is_told_to_watchers_once_with_its_verdict() -> None:
    async with open_fake() as backend, backend.watch() as deaths:
        ref = await backend.make(order())
        backend.die("box-1", EndReason.OOM)
        backend.die("box-1", EndReason.EVICTED)
        death = await anext(deaths)
        assert (death.reason, death.fault, death.mask) == (EndReason.OOM, Fault.AGENT, False)
        assert await backend.look(ref) == death
        [owned] = await backend.list_owned()
        assert not owned.alive
        with pytest.raises(SandboxdError) as lost:
            await backend.connect(ref)
        assert lost.value.code is ErrorCode.SANDBOX_LOST


async def test_box_that_vanishes_has_no_evidence() -> None:
    async with open_fake() as backend:
        ref = await backend.make(order())
        backend.vanish("box-1")
        assert await backend.list_owned() == []
        death = await backend.look(ref)
        assert death is not None
        assert (death.reason, death.fault, death.mask) == (EndReason.DIED, Fault.UNKNOWN, True)


async def test_dropped_lines_end_calls_and_not_what_they_began() -> None:
    async with open_fake() as backend:
        guest = await leased(backend)
        async with anyio.create_task_group() as group:

            async def wait() -> None:
                with pytest.raises(GuestLost) as lost:
                    await guest.look_exec("e", wait_s=1000)
                assert lost.value.sent

            await guest.run(Command(exec_id="e", argv=("sleep", "5")), wait=False)
            await guest.drop_idle()
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            backend.drop_connections()
        assert (await guest.look_exec("e", wait_s=10)).exit_code == 0
        await guest.aclose()


async def test_slow_guest_answers_late() -> None:
    async with open_fake() as backend:
        guest = await leased(backend)
        backend.faults.slow(7)
        before = anyio.current_time()
        await guest.hello()
        assert anyio.current_time() - before >= 7
        await guest.aclose()


async def test_guest_ends_at_its_hard_end_and_watchers_hear_of_it() -> None:
    async with open_fake() as backend, backend.watch() as deaths:
        guest = await leased(backend, life_s=100)
        await guest.renew(life_s=3600)
        before = anyio.current_time()
        death: Death = await anext(deaths)
        assert anyio.current_time() - before == pytest.approx(3600)
        assert "hard end" in death.detail
        await guest.aclose()


async def test_unclaimed_guest_ends_at_its_orphan_limit() -> None:
    async with open_fake(FakeSettings(orphan_limit_s=50)) as backend, backend.watch() as deaths:
        ref = await backend.make(order())
        guest = Guest(lambda: backend.connect(ref))
        await anyio.sleep(40)
        await guest.hello()
        await guest.aclose()
        before = anyio.current_time()
        assert "no word from a daemon" in (await anext(deaths)).detail
        assert anyio.current_time() - before == pytest.approx(50)


async def test_users_own_program_runs_under_its_name() -> None:
    async def make(process: Process) -> int:
        await process.out(f"making {process.argv[1]} in {process.cwd}\n")
        process.files.write(process.path("built"), b"yes")
        return 2

    async with open_fake(FakeSettings(programs={"make": make})) as backend:
        guest = await leased(backend)
        record = await guest.run(
            Command(exec_id="e", argv=("sh", "-c", "make all; echo $?; cat built")), wait=True
        )
        assert record.stdout.head == b"making all in /\n2\nyes"
        await guest.aclose()


async def test_reader_that_takes_nothing_for_long_is_dropped_and_the_command_ends() -> None:
    async with open_fake() as backend:
        guest = await leased(backend)
        text = "cat > /dev/null; head -c 3000000 /dev/zero"
        await guest.run(Command(exec_id="e", argv=("sh", "-c", text), stdin_open=True), wait=False)
        async with guest.attach("e") as attachment:
            await anext(attachment)
            await attachment.close_stdin()
            record = await guest.look_exec("e", wait_s=100)
            assert (record.outcome, record.stdout.total_bytes) == (Outcome.EXITED, 3_000_000)
            with pytest.raises(GuestLost):
                await to_its_end(attachment)
        async with guest.attach("e") as attachment:
            assert [event for event in await to_its_end(attachment) if isinstance(event, Gap)]
        await guest.aclose()


async def test_disk_limit_is_held() -> None:
    async with open_fake() as backend:
        guest = await leased(backend)
        chunk = bytes(1 << 20)
        async with anyio.create_task_group() as group:
            for number in range(31):  # /etc/hostname takes a little of the 32nd
                group.start_soon(guest.files.write, f"/f{number}", chunk)
        with pytest.raises(SandboxdError) as full:
            await guest.files.write("/over", chunk)
        assert full.value.code is ErrorCode.DISK_FULL
        await guest.aclose()


@pytest.mark.parametrize("spec", [{"runtime": "runsc"}, {"network": Network(kind="internet")}])
async def test_what_it_cannot_do_is_refused(spec: dict[str, object]) -> None:
    async with open_fake() as backend:
        with pytest.raises(SandboxdError) as refused:
            await backend.make(order(**spec))
        assert refused.value.code is ErrorCode.NOT_SUPPORTED


async def test_image_that_is_not_in_its_settings_is_unavailable() -> None:
    async with open_fake(FakeSettings(images=frozenset({"other"}))) as backend:
        with pytest.raises(SandboxdError) as refused:
            await backend.make(order())
        assert refused.value.code is ErrorCode.IMAGE_UNAVAILABLE
