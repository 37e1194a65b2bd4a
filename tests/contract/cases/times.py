"""Rows that wait: with their real times in the long run, and with scaled ones in every run."""

from __future__ import annotations

import pytest


def scaled(scale: float) -> pytest.MarkDecorator:
    """Run the test with `scale` as that factor on all its times, and in the long run with 1."""
    return pytest.mark.parametrize(
        "scale",
        [pytest.param(scale, id="scaled"), pytest.param(1.0, id="real", marks=pytest.mark.slow)],
    )
