"""Which ways to start a kernel are known to work in a sandbox. Pure.

Where one has worked that fails later, something inside has come between.
"""

from __future__ import annotations

from collections.abc import Mapping

from sandboxd.kernels.early.binding import counts_at_start
from sandboxd.model.kernel import KernelOrder
from sandboxd.model.lease import LeaseTerms

Way = tuple[str, frozenset[tuple[str, str]]]  # a kernelspec, and variables that count at its start


def way_of(order: KernelOrder) -> Way:
    """In which way an order starts its kernel."""
    return order.spec, frozenset(_at_start(order.env).items())


def proven_before(terms: LeaseTerms) -> set[Way]:
    """Those of the kernels that ran in a sandbox before its lease; none where the lease has them
    started otherwise.
    """
    early = terms.spec.kernel_terms
    if early.user != terms.user or _at_start(dict(early.env)) != _at_start(terms.env):
        return set()
    return {(spec, frozenset()) for spec in terms.spec.kernels}


def _at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if counts_at_start(name)}
