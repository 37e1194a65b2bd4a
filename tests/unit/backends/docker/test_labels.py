"""What a container says of its box, and what somebody made of it."""

from __future__ import annotations

from sandboxd.backends.docker.labels import labels_of, limits_of, order_labels, owned_by
from sandboxd.backends.protocol import BoxOrder
from sandboxd.model.template import BoxSpec, Resources

ORDER = BoxOrder(
    box_id="box-1",
    spec=BoxSpec(image="x", resources=Resources(memory_mb=64, disk_mb=100)),
    labels={"pool": "p", "made_at": "0", "sandboxd.box": "mine"},
)


def test_labels_carry_the_order_and_come_back_as_they_were() -> None:
    labels = labels_of(ORDER, "here")
    assert order_labels(labels) == dict(ORDER.labels)
    assert limits_of(labels) == (64 << 20, 100 << 20)


def test_an_orders_own_labels_never_stand_in_for_ours() -> None:
    assert labels_of(ORDER, "here")["sandboxd.box"] == "box-1"


def test_limits_that_somebody_spoiled_end_no_box() -> None:
    memory, disk = limits_of({"sandboxd.disk_bytes": "-1", "sandboxd.memory_bytes": "64m"})
    assert memory == 0
    assert disk > 1 << 60


def test_a_filter_names_the_installation_always() -> None:
    assert owned_by("here")["label"] == ["sandboxd.installation=here"]
    assert owned_by("here", "box-1")["label"][1:] == ["sandboxd.box=box-1"]
