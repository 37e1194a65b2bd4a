"""The book of leases: every live one, and those that ended within the hour. Synchronous."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from sandboxd.errors import SandboxdError
from sandboxd.leases.tenancy import Tenancy
from sandboxd.leases.terms import LeaseOrder
from sandboxd.model.lease import Lease, LeaseState
from sandboxd.model.run import RunKey
from sandboxd.wire.codes import ErrorCode


class Book:
    """Tenancies by id, by box and by idempotency key."""

    def __init__(self) -> None:
        self._by_id: dict[str, Tenancy] = {}
        self._by_key: dict[tuple[str, str], Tenancy] = {}
        self._by_box: dict[str, Tenancy] = {}
        self._held = _Index(lambda lease: lease.state is not LeaseState.ENDED)  # by owner
        self._live = _Index(lambda lease: not lease.over)  # all
        self._of_run = _Index(lambda lease: not lease.over)
        self._of_group = _Index(lambda lease: lease.terms.group_size > 0)

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
        self._held.add(lease.owner, tenancy)
        self._live.add(None, tenancy)
        if lease.terms.run_id is not None:
            self._of_run.add((lease.owner, lease.terms.run_id), tenancy)
        self._of_group.add((lease.owner, lease.terms.group_id), tenancy)
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
        self._held.drop(lease.owner, tenancy)
        self._live.drop(None, tenancy)
        self._of_run.drop((lease.owner, lease.terms.run_id), tenancy)
        self._of_group.drop((lease.owner, lease.terms.group_id), tenancy)
        key = (lease.owner, lease.terms.idempotency_key or "")
        if self._by_key.get(key) is tenancy:
            del self._by_key[key]
        if lease.box is not None:
            self._by_box.pop(lease.box.box_id, None)

    def held_by(self, owner: str) -> list[Tenancy]:
        """An owner's leases but for those that have ended and whose box is gone."""
        return self._held.get(owner)

    def live(self) -> list[Tenancy]:
        """All that are not over: few, where many have ended within the hour."""
        return self._live.get(None)

    def of_run(self, key: RunKey) -> list[Tenancy]:
        """The leases of a run that are not over."""
        return self._of_run.get(key)

    def of_group(self, group_id: str, *, owner: str) -> list[Tenancy]:
        """The leases that were asked for as one group, as far as they are known, in their order."""
        found = self._of_group.get((owner, group_id))
        return sorted(found, key=lambda tenancy: tenancy.lease.terms.group_place)

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


class _Index:
    """Leases by some key, as long as they are worth keeping; others are dropped when next met."""

    def __init__(self, worth_it: Callable[[Lease], bool]) -> None:
        self._worth_it = worth_it
        self._found: dict[Hashable, dict[str, Tenancy]] = {}

    def add(self, key: Hashable, tenancy: Tenancy) -> None:
        if self._worth_it(tenancy.lease):
            self._found.setdefault(key, {})[tenancy.lease.id] = tenancy

    def drop(self, key: Hashable, tenancy: Tenancy) -> None:
        found = self._found.get(key, {})
        if found.pop(tenancy.lease.id, None) is not None and not found:
            del self._found[key]

    def get(self, key: Hashable) -> list[Tenancy]:
        found = list(self._found.get(key, {}).values())
        for tenancy in found:
            if not self._worth_it(tenancy.lease):
                self.drop(key, tenancy)
        return [tenancy for tenancy in found if self._worth_it(tenancy.lease)]
