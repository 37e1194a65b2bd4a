"""Whoever is cancelled at whatever moment leaves nothing, or what can be found and removed."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.backends.protocol import Backend, BoxRef
from sandboxd.model.template import BoxSpec
from tests.conformance.conftest import order

pytestmark = pytest.mark.anyio

# Between the first step of a make and the last, on machines slow and fast.
MOMENTS_S = [0, 0.001, 0.002, 0.004, 0.006, 0.008, 0.011, 0.015, 0.02, 0.03, 0.05]


@pytest.mark.parametrize("moment_s", MOMENTS_S)
async def test_a_make_cancelled_at_any_moment_leaves_nothing(
    backend: Backend, spec: BoxSpec, moment_s: float
) -> None:
    made: list[BoxRef] = []
    with anyio.fail_after(60):
        with anyio.move_on_after(moment_s):
            made.append(await backend.make(order(spec)))
        left = {owned.box_id for owned in await backend.list_owned()}
        assert left <= {box.box_id for box in made}
        # And the backend is none the worse for it.
        assert await backend.look(await backend.make(order(spec))) is None


@pytest.mark.parametrize("moment_s", [0, 0.002, 0.005, 0.01])
async def test_a_dispose_cancelled_at_any_moment_can_be_done_again(
    backend: Backend, box: BoxRef, moment_s: float
) -> None:
    with anyio.fail_after(60):
        with anyio.move_on_after(moment_s):
            await backend.dispose(box)
        await backend.dispose(box)
        assert await backend.list_owned() == []
