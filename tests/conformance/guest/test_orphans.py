"""What commands leave behind is reaped, however much it is."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.backends.protocol import Backend
from sandboxd.guest import Guest
from sandboxd.model.command import Command
from sandboxd.model.ids import new_id
from sandboxd.wire.codes import Outcome
from tests.conformance.guest.steps import need_any_program, sh, until

_MOST_ZOMBIES = 10
# At most 40 at once, well below what the box may have.
_ORPHANS = """
i=0
while [ $i -lt 2000 ]; do
    (sleep 0.05 &)
    i=$((i + 1))
    [ $((i % 40)) -ne 0 ] || sleep 0.06
done
"""
_DOUBLE_FORKED = """
i=0
while [ $i -lt 500 ]; do
    (setsid sh -c '(sleep 0.05 &)' &)
    i=$((i + 1))
    [ $((i % 20)) -ne 0 ] || sleep 0.06
done
"""


@pytest.mark.requirement("RL-10")
async def test_orphans_do_not_fill_the_table_of_processes(guest: Guest, backend: Backend) -> None:
    need_any_program(backend)
    with anyio.fail_after(90):
        for text in (_ORPHANS, _DOUBLE_FORKED):
            argv = ("/bin/sh", "-c", text)
            record = await guest.run(Command(exec_id=new_id("exec"), argv=argv), wait=True)
            assert (record.outcome, record.exit_code) == (Outcome.EXITED, 0)
            assert record.stderr.head == b""

    async def are_few() -> bool:
        seen = await sh(guest, "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '")
        return int(seen.stdout.head) <= _MOST_ZOMBIES

    await until(are_few)
