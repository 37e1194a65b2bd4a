"""The book of leases: every live one, and those that ended within the hour. Synchronous."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sandboxd.errors import SandboxdError
from sandboxd.leases.tenancy import Tenancy
from sandboxd.leases.terms import LeaseOrder
from sandboxd.model.lease import Lease
from sandboxd.wire.codes import ErrorCode


class Book:
    """Tenancies by id, by box and by idempotency key."""

    def __init__(self) -> None:
        self._by_id: dict[str, Tenancy] = {}
        self._by_key: dict[tuple[str, str], Tenancy] = {}
        self._by_box: dict[str, Tenancy] = {}

    def __iter__(self) -> Iterator[Tenancy]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, tenancy: object) -> bool:
        return isinstance(tenancy, Tenancy) and self._by_id.get(tenancy.lease.id) is tenancy

    def enter(self, tenancy: Tenancy) -> None:
        """Add a lease."""
        lease = tenancy.lease
        self._by_id[lease.id] = tenancy
        if lease.terms.idempotency_key is not None:
            self._by_key[lease.owner, lease.terms.idempotency_key] = tenancy
        self.bind(tenancy)

    def bind(self, tenancy: Tenancy) -> None:
        """Note which box a lease has now, if any."""
        if tenancy.lease.box is not None:
            self._by_box[tenancy.lease.box.box_id] = tenancy

    def strike(self, tenancy: Tenancy) -> None:
        """Forget a lease."""
        lease = tenancy.lease
        self._by_id.pop(lease.id, None)
        key = (lease.owner, lease.terms.idempotency_key or "")
        if self._by_key.get(key) is tenancy:
            del self._by_key[key]
        if lease.box is not None:
            self._by_box.pop(lease.box.box_id, None)

    def of_box(self, box_id: str) -> Tenancy | None:
        """The lease that holds or held a box."""
        return self._by_box.get(box_id)

    def same(self, order: LeaseOrder, *, owner: str) -> Tenancy | None:
        """The lease that this owner's idempotency key made. Raises `conflict` for another body."""
        key = order.terms.idempotency_key
        found = None if key is None else self._by_key.get((owner, key))
        if found is not None and found.lease.terms.body_digest != order.terms.body_digest:
            raise SandboxdError(
                ErrorCode.CONFLICT,
                f"idempotency_key {key!r} made a sandbox from another request",
                sandbox_id=found.lease.id,
            )
        return found

    def find(self, lease_id: str, *, owner: str | None) -> Tenancy:
        """Raises `not_found` for an unknown id and for another key's; owner None sees all."""
        found = self._by_id.get(lease_id)
        if found is None or (owner is not None and found.lease.owner != owner):
            raise SandboxdError(
                ErrorCode.NOT_FOUND,
                "there is no such sandbox, or it is not this key's",
                details={"sandbox_id": lease_id},
            )
        return found

    def select(self, *, owner: str | None, where: Callable[[Lease], bool]) -> list[Tenancy]:
        """All that match, newest first."""
        found = [
            tenancy
            for tenancy in self._by_id.values()
            if (owner is None or tenancy.lease.owner == owner) and where(tenancy.lease)
        ]
        return sorted(found, key=lambda t: (t.lease.created_at, t.lease.id), reverse=True)
