"""Sandboxes that never come to be: nobody can have been scored, whoever's fault it was."""

from __future__ import annotations

import pytest

from sandboxd_client import ImageUnavailable, Sandboxd, SandboxdError, StartFailed
from tests.contract.verdicts.kinds import problem_verdict, refused

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(
    ("template", "kind", "told", "words"),
    [
        ("missing", ImageUnavailable, ("image_unavailable", "task", True, False), "nope"),
        ("failing", StartFailed, ("start_failed", "task", True, False), "no such wheel"),
        ("hanging", StartFailed, ("start_failed", "task", True, False), "setup_timeout_s"),
    ],
)
def test_what_the_template_cannot_do_is_the_tasks_fault(
    client: Sandboxd,
    template: str,
    kind: type[SandboxdError],
    told: tuple[str, str, bool, bool],
    words: str,
) -> None:
    error = refused(lambda: client.lease(template, wait_timeout_s=40))
    assert type(error) is kind
    assert problem_verdict(error) == told
    assert words in str(error)
    queued = refused(lambda: client.lease(template, wait_timeout_s=40, idempotency_key=template))
    assert problem_verdict(queued) == told


def test_a_set_up_that_fails_stays_to_be_read_under_its_id(client: Sandboxd) -> None:
    refused(lambda: client.lease("failing", wait_timeout_s=40))
    info = next(each for each in client.sandboxes(state="ended") if each.template == "failing")
    assert info.end is not None
    assert (info.end.reason, info.end.code) == ("make_failed", "start_failed")
    assert (info.end.fault, info.end.mask) == ("task", True)
    assert "no such wheel" in str(list(client.sandbox(info.id).logs()))
