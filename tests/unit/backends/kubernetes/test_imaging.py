"""What stands for images in a cluster, how far it is, and how often that is asked."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from sandboxd.backends.kubernetes.imaging.bodies import (
    Standing,
    body_of,
    errand_of,
    standing_from,
)
from sandboxd.backends.kubernetes.imaging.sight import Sight
from sandboxd.backends.protocol import ImageState
from sandboxd.errors import SandboxdError
from sandboxd.model.template import PodOptions
from sandboxd.wire.codes import ErrorCode

GPU = PodOptions(
    fields=json.dumps(
        {
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "priorityClassName": "high",
        }
    )
)


def body(options: PodOptions = GPU) -> dict[str, Any]:
    errand = errand_of("evals/cuda:12", options)
    return body_of(errand, installation="inst", tag="inst", guest_image="g:1")


def test_one_goes_to_the_nodes_of_its_templates_pods_and_outranks_nobody() -> None:
    spec = body()["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert "priorityClassName" not in spec


def test_its_pod_is_of_the_image_itself_has_no_right_and_runs_the_guests_program() -> None:
    spec = body()["spec"]["template"]["spec"]
    (guest,), (main,) = spec["initContainers"], spec["containers"]
    assert (guest["image"], main["image"]) == ("g:1", "evals/cuda:12")
    assert (main["command"], main["args"]) == (["/run/sandbox-guest"], ["wait"])
    assert spec["securityContext"]["runAsNonRoot"]
    assert not spec["automountServiceAccountToken"]
    assert main["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_secrets_for_all_pulls_stand_beside_those_of_the_template() -> None:
    own = PodOptions(fields=json.dumps({"imagePullSecrets": [{"name": "own"}]}))
    choice = json.loads(errand_of("i:1", own, secrets=("all",)).choice)
    assert {each["name"] for each in choice["imagePullSecrets"]} == {"own", "all"}


def test_another_choice_of_nodes_is_another_errand_and_other_fields_are_not() -> None:
    plain = errand_of("i:1", PodOptions())
    ranked = errand_of("i:1", PodOptions(fields=json.dumps({"priorityClassName": "high"})))
    assert plain.digest == ranked.digest
    assert len({plain.digest, errand_of("i:1", GPU).digest, errand_of("i:2", GPU).digest}) == 3


def test_what_its_controller_has_not_looked_at_yet_is_not_done() -> None:
    told = {"desiredNumberScheduled": 2, "numberReady": 2, "observedGeneration": 1}
    facts = {**body(), "status": told}
    facts["metadata"]["generation"] = 2
    assert not standing_from(facts).is_done
    told["observedGeneration"] = 2
    assert standing_from(facts).is_done
    assert not standing_from({**body(), "status": {}}).is_done


def standing(ready: int, wanted: int = 3) -> dict[str, Standing]:
    return {"d": Standing(digest="d", name="n", wanted=wanted, ready=ready)}


def state(sight: Sight, *, in_use: int = 0) -> tuple[ImageState, str]:
    image = sight.image("i:1", ["d"], in_use=in_use, used_at=None)
    return image.state, image.progress


@pytest.mark.anyio
async def test_an_image_is_there_once_all_its_nodes_have_it() -> None:
    sight = Sight()
    assert state(sight) == (ImageState.PULLING, "on 0 of 0 nodes")
    sight.saw(standing(1), {})
    assert state(sight) == (ImageState.PULLING, "on 1 of 3 nodes")
    trouble = SandboxdError(ErrorCode.IMAGE_UNAVAILABLE, "no such tag")
    sight.saw(standing(1), {"d": trouble})
    assert sight.image("i:1", ["d"], in_use=0, used_at=None).error == "no such tag"
    sight.saw(standing(3), {})
    assert state(sight) == (ImageState.PRESENT, "on 3 of 3 nodes")
    assert sight.image("other", [], in_use=1, used_at=None).state is ImageState.PRESENT


@pytest.mark.anyio
async def test_the_server_is_asked_ever_more_seldom_while_nothing_changes() -> None:
    sight = Sight()
    sight.saw(standing(0), {})
    pauses = []
    for _ in range(7):
        sight.saw(standing(0), {})
        pauses.append(sight.pause_s)
    assert pauses == [2, 4, 8, 16, 30, 30, 30]
    sight.saw(standing(1), {})
    assert sight.pause_s == 1
    sight.saw(standing(3), {})
    assert sight.pause_s == 60
    sight.at_once()
    assert sight.due_at < anyio.current_time()


@pytest.mark.anyio
async def test_a_server_that_does_not_answer_is_why_an_image_is_not_told_as_there() -> None:
    sight = Sight()
    sight.failed(SandboxdError(ErrorCode.BACKEND_UNAVAILABLE, "it is away"))
    assert state(sight)[0] is ImageState.FAILED
    sight.failed(SandboxdError(ErrorCode.BACKEND_UNAVAILABLE, "it is away"))
    assert sight.pause_s == 4
