"""What the last look at nodes has shown of images, and when to look again. Synchronous."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import anyio

from sandboxd.backends.kubernetes.imaging.bodies import Standing
from sandboxd.backends.protocol import Image, ImageState
from sandboxd.errors import SandboxdError

# From one look to the next: while some are coming, ever longer if nothing changes, and else.
SOON_S = 1.0
_LATER_S, _SELDOM_S = 30.0, 60.0


@dataclass(slots=True, kw_only=True)
class Sight:
    """Standings and troubles are kept by their errands' digests.

    outage: why nothing new is known. due_at: when to look again if nothing else is wanted until
    then, on the loop's clock; pause_s: from the last look to that.
    """

    standings: dict[str, Standing] = field(default_factory=dict)
    trouble: dict[str, SandboxdError] = field(default_factory=dict)
    outage: SandboxdError | None = None
    due_at: float = float("-inf")
    pause_s: float = SOON_S

    @property
    def done(self) -> set[str]:
        """The errands that are done."""
        return {digest for digest, standing in self.standings.items() if standing.is_done}

    def saw(self, standings: dict[str, Standing], trouble: dict[str, SandboxdError]) -> None:
        """A look has shown this."""
        changed = self.standings != standings or self.trouble.keys() != trouble.keys()
        self.standings, self.trouble, self.outage = standings, trouble, None
        self._put_off(changed=changed)

    def failed(self, outage: SandboxdError) -> None:
        """A look has shown nothing."""
        self.outage = outage
        self._put_off(changed=False)

    def at_once(self) -> None:
        """Somebody waits: look again now, and soon after that."""
        self.due_at, self.pause_s = float("-inf"), SOON_S

    def _put_off(self, *, changed: bool) -> None:
        if self.outage is None and len(self.done) == len(self.standings):
            self.pause_s = _SELDOM_S
        else:
            self.pause_s = SOON_S if changed else min(self.pause_s * 2, _LATER_S)
        self.due_at = anyio.current_time() + self.pause_s

    def image(
        self, reference: str, digests: Collection[str], *, in_use: int, used_at: float | None
    ) -> Image:
        """How far an image is. digests: of its errands; in_use: boxes that are made of it."""
        standings = [self.standings[each] for each in digests if each in self.standings]
        there = len(standings) == len(digests) and all(each.is_done for each in standings)
        state, error = ImageState.PULLING, ""
        if there and (digests or in_use):
            state = ImageState.PRESENT
        elif error := self._why_not(digests):
            state = ImageState.FAILED
        ready = sum(min(each.ready, each.wanted) for each in standings)
        nodes = sum(each.wanted for each in standings)
        return Image(
            reference=reference,
            state=state,
            used_at=used_at,
            in_use=in_use,
            error=error,
            progress=f"on {ready} of {nodes} nodes" if digests else "",
        )

    def _why_not(self, digests: Collection[str]) -> str:
        errors = [self.trouble[each] for each in digests if each in self.trouble]
        errors += [self.outage] if self.outage is not None else []
        return errors[0].detail if errors else ""
