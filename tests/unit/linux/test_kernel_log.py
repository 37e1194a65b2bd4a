"""The kernel's log: who was killed for want of memory, and whose it was."""

from __future__ import annotations

import pytest

from sandboxd.linux.kernel_log import find_kill

GROUP = "5f3a"
OWN = "oom_memcg=/boxes/5f3a,task_memcg=/boxes/5f3a"
INSIDE = "oom_memcg=/boxes/5f3a/inner,task_memcg=/boxes/5f3a/inner"
ABOVE = "oom_memcg=/boxes,task_memcg=/boxes/5f3a"
GLOBAL = "global_oom,task_memcg=/boxes/5f3a"
SCOPE = "oom_memcg=/a.slice/docker-5f3a.scope,task_memcg=/a.slice/docker-5f3a.scope"


def record(groups: str, *, task: str = "sandbox-guest", pid: int = 77) -> str:
    head = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=5f3a,mems_allowed=0"
    return f"6,101,36374784749,-;{head},{groups},task={task},pid={pid},uid=0"


@pytest.mark.parametrize(
    ("groups", "own"),
    [(OWN, True), (INSIDE, True), (SCOPE, True), (ABOVE, False), (GLOBAL, False)],
)
def test_it_says_whose_memory_was_short(groups: str, own: bool) -> None:
    assert find_kill([record(groups)], 77, GROUP) is own


@pytest.mark.parametrize(
    "records",
    [
        [],
        ["6,1,2,-;Memory cgroup out of memory: Killed process 77 (sandbox-guest)"],
        [record(OWN, pid=770)],
        [record("oom_memcg=/boxes/9,task_memcg=/boxes/9")],
    ],
    ids=["nothing", "another line", "another process", "another group"],
)
def test_of_others_it_says_nothing(records: list[str]) -> None:
    assert find_kill(records, 77, GROUP) is None


def test_a_process_cannot_name_itself_into_it() -> None:
    lie = record("oom_memcg=/boxes/9,task_memcg=/boxes/9", task="x,pid=77,uid=0", pid=5)
    assert find_kill([lie], 77, GROUP) is None


def test_the_last_word_counts() -> None:
    assert find_kill([record(ABOVE), record(OWN)], 77, GROUP) is True
