"""What the kernel itself says of a first process that it killed."""

from __future__ import annotations

from anyio import to_thread

from sandboxd.backends.parts.deaths import KILLED
from sandboxd.linux.kernel_log import killed_at_own_limit
from sandboxd.linux.processes import ProcessMark


async def at_own_limit(
    process: ProcessMark | None, group: str, *, exit_code: int | None
) -> bool | None:
    """As `Evidence` has it. Of another end than by SIGKILL the log is not asked: it takes
    milliseconds to read, and has nothing to say.

    process: of this boot. group: a name that stands in the path of the box's group alone.
    """
    if process is None or exit_code != KILLED:
        return None
    return await to_thread.run_sync(killed_at_own_limit, process.pid, group)
