"""The stock book as a state machine: whatever happens in whatever order, the counts are true and
no box is handed out twice."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sandboxd.model.box import BoxState
from sandboxd.pool.stock import Box, Stock


class StockMachine(RuleBasedStateMachine):
    """Drives a book and a plain model of it side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.stock = Stock()
        self.model: dict[str, BoxState] = {}
        self.handed_out: set[str] = set()
        self.number = 0

    def boxes(self, state: BoxState) -> list[Box]:
        return [box for box in self.stock if self.model.get(box.box_id) is state]

    def move(self, box: Box, state: BoxState) -> None:
        self.stock.move(box, state)
        if state is BoxState.GONE:
            del self.model[box.box_id]
        else:
            self.model[box.box_id] = state

    @rule(fingerprint=st.sampled_from(["a", "b"]))
    def begin(self, fingerprint: str) -> None:
        self.number += 1
        box = Box(box_id=f"box-{self.number}", fingerprint=fingerprint, pool="p")
        self.stock.enter(box)
        self.model[box.box_id] = BoxState.MAKING

    @precondition(lambda self: self.boxes(BoxState.MAKING))
    @rule(data=st.data(), to=st.sampled_from([BoxState.WARM, BoxState.DISPOSING]))
    def made(self, data: st.DataObject, to: BoxState) -> None:
        self.move(data.draw(st.sampled_from(self.boxes(BoxState.MAKING))), to)

    @rule(fingerprint=st.sampled_from(["a", "b"]))
    def take(self, fingerprint: str) -> None:
        box = self.stock.take(fingerprint)
        fitting = [b for b in self.boxes(BoxState.WARM) if b.fingerprint == fingerprint]
        if box is None:
            assert not fitting
            return
        assert box in fitting
        assert box.box_id not in self.handed_out
        self.handed_out.add(box.box_id)
        self.model[box.box_id] = BoxState.LEASED

    @precondition(lambda self: self.boxes(BoxState.LEASED) or self.boxes(BoxState.WARM))
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        held = self.boxes(BoxState.LEASED) + self.boxes(BoxState.WARM)
        self.move(data.draw(st.sampled_from(held)), BoxState.DISPOSING)

    @precondition(lambda self: self.boxes(BoxState.DISPOSING))
    @rule(data=st.data())
    def gone(self, data: st.DataObject) -> None:
        self.move(data.draw(st.sampled_from(self.boxes(BoxState.DISPOSING))), BoxState.GONE)

    @precondition(lambda self: self.boxes(BoxState.LEASED))
    @rule(data=st.data())
    def a_used_box_never_goes_back(self, data: st.DataObject) -> None:
        box = data.draw(st.sampled_from(self.boxes(BoxState.LEASED)))
        try:
            self.stock.move(box, BoxState.WARM)
        except ValueError:
            return
        raise AssertionError("a used box became stock again")

    @invariant()
    def the_counts_are_true(self) -> None:
        assert self.stock.exists == len(self.model)
        for state in BoxState:
            assert self.stock.count(state) == list(self.model.values()).count(state)
        assert {box.box_id for box in self.stock.warm()} == {
            box.box_id for box in self.boxes(BoxState.WARM)
        }


TestStock = StockMachine.TestCase
TestStock.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
