"""Every box is found by its label."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.backends.protocol import Backend, BoxRef
from sandboxd.model.template import BoxSpec
from tests.conformance.conftest import order

pytestmark = pytest.mark.anyio


async def test_a_new_backend_owns_nothing(backend: Backend) -> None:
    assert await backend.list_owned() == []


async def test_a_box_is_listed_with_the_labels_it_was_made_with(
    backend: Backend, spec: BoxSpec
) -> None:
    wanted = order(spec)
    with anyio.fail_after(30):
        box = await backend.make(wanted)
    (owned,) = await backend.list_owned()
    assert owned.box_id == wanted.box_id
    assert dict(owned.labels) == dict(wanted.labels)
    assert (owned.ref, owned.alive) == (box, True)


async def test_a_reference_that_was_stored_as_data_still_works(
    backend: Backend, box: BoxRef
) -> None:
    copy = BoxRef(backend=box.backend, box_id=box.box_id, details=dict(box.details))
    assert await backend.look(copy) is None
    with anyio.fail_after(30):
        await backend.dispose(copy)
    assert await backend.list_owned() == []
