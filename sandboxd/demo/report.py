"""The summary: what passed, what it cost, what was left, and how to go on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sandboxd.demo.rollouts import BatchResult, Rollout

_SHOWN_FAILURES = 5
_HOW_TO_GO_ON = """\
How to go on:
  {serve:<39} a daemon at http://127.0.0.1:8420 that stays
  id=$(sandboxd lease python)             a sandbox of your own
  sandboxd exec $id -- python3 -c 'print("hello")'
  sandboxd release $id                    and back; the SDK's twelve lines are in the README"""


def how_to_go_on(backend: str) -> str:
    """What a person may do next, in lines."""
    if backend != "docker":
        return _HOW_TO_GO_ON.format(serve="sandboxd serve")
    text = _HOW_TO_GO_ON.format(serve="sandboxd serve --backend docker")
    return f"{text}\n  docs/docker.md                          images, registries, budgets, GPUs"


def is_right(results: Sequence[BatchResult], *, left: Sequence[str]) -> bool:
    """Whether every verdict is the one demanded and nothing is left over."""
    return not left and all(rollout.right for result in results for rollout in result.rollouts)


def summary(results: Sequence[BatchResult], *, left: Sequence[str]) -> Iterator[str]:
    """The lines of the summary."""
    for result in results:
        yield from _batch(result)
    yield f"sandboxes left over: {len(left)}" + (f" ({', '.join(left)})" if left else "")


def _batch(result: BatchResult) -> Iterator[str]:
    rollouts = result.rollouts
    passed = sum(rollout.passed for rollout in rollouts)
    faults = sum(rollout.fault is not None for rollout in rollouts)
    wanted = len(rollouts) if result.batch.must_pass else 0
    rate = len(rollouts) / result.seconds if result.seconds else 0.0
    name = result.batch.name
    yield f"{name}: {passed} of {len(rollouts)} pass (must be {wanted}), faults of ours: {faults}"
    yield (
        f"  lease p50 {_ms(rollouts, 'lease_s', 50)}, p99 {_ms(rollouts, 'lease_s', 99)} · "
        f"{result.way.name} p50 {_ms(rollouts, 'program_s', 50)}, "
        f"p99 {_ms(rollouts, 'program_s', 99)} · "
        f"{rate:.1f} rollouts/s"
    )
    wrong = [rollout for rollout in rollouts if not rollout.right]
    for rollout in wrong[:_SHOWN_FAILURES]:
        yield f"  WRONG {rollout.task_id}: {rollout.fault or rollout.said or 'passed'}"
    if len(wrong) > _SHOWN_FAILURES:
        yield f"  … and {len(wrong) - _SHOWN_FAILURES} more"


def _ms(rollouts: Sequence[Rollout], name: str, percent: int) -> str:
    values = sorted(v for r in rollouts if (v := getattr(r, name)) is not None)
    if not values:
        return "–"
    return f"{values[min(len(values) - 1, len(values) * percent // 100)] * 1000:.0f} ms"
