"""A request for a lease as it enters the book, and whose turn it is in a queue."""

from __future__ import annotations

from sandboxd.leases.back_office import BackOffice
from sandboxd.leases.tenancy import Tenancy
from sandboxd.leases.terms import LeaseOrder
from sandboxd.model.ids import new_id
from sandboxd.model.lease import Lease, LeaseState, LeaseTerms
from sandboxd.pool.admission import Flow


def enter_request(order: LeaseOrder, office: BackOffice, *, owner: str) -> Tenancy:
    """A queued lease, in the book."""
    lease = Lease(
        id=new_id("sbx"),
        owner=owner,
        terms=order.terms,
        state=LeaseState.QUEUED,
        created_at=office.clock.now(),
        backend=office.backend.name,
    )
    pool = office.house.pools[order.terms.template]
    tenancy = Tenancy(lease, pool=pool, clock=office.clock, order=order)
    office.book.enter(tenancy)
    return tenancy


def flow_of(terms: LeaseTerms, *, owner: str) -> Flow:
    """Who takes turns with others: a run of a key, or a key's requests without a run."""
    return (owner,) if terms.run_id is None else (owner, terms.run_id)
