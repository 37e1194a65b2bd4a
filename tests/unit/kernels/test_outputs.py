"""What a cell shows, put together: as a notebook has it, in bounds whatever comes."""

from __future__ import annotations

import time
from typing import Any
from weakref import ref

from hypothesis import given
from hypothesis import strategies as st

from sandboxd.kernels.outputs import (
    DISPLAY_BYTES,
    MOST_OUTPUTS,
    STREAM_CHARS,
    TEXT_CHARS,
    Outputs,
    StreamText,
)
from tests.support.cells import check_outputs

_QUICK_S = 1.0  # for what takes some milliseconds: not more than that grows with its square


def display(text: str, *, display_id: str = "") -> dict[str, Any]:
    shown: dict[str, Any] = {"output_type": "display_data", "metadata": {}}
    shown["data"] = {"text/plain": text}
    return shown | ({"transient": {"display_id": display_id}} if display_id else {})


def show(outputs: Outputs, text: str, *, display_id: str = "") -> bool:
    """Whether it is kept."""
    return outputs.show(display(text, display_id=display_id), size=len(text)) is not None


def update(outputs: Outputs, display_id: str, text: str) -> None:
    outputs.update(display_id, {"text/plain": text}, {}, size=len(text))


def texts(outputs: Outputs) -> list[str]:
    return [
        output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"]
        for output in outputs.listed()
    ]


@given(st.lists(st.text(max_size=30)), st.integers(1, 40).map(lambda half: 2 * half))
def test_a_streams_head_and_tail_are_kept_and_what_lies_between_is_counted(
    pieces: list[str], limit: int
) -> None:
    stream, whole = StreamText(limit), "".join(pieces)
    for piece in pieces:
        stream.add(piece)
    assert stream.missing == max(0, len(whole) - limit)
    assert stream.room == max(0, limit - len(whole))
    assert stream.size == min(len(whole), limit)
    if len(whole) <= limit:
        assert stream.text() == whole
    else:
        assert stream.text().startswith(whole[: limit // 2])
        assert stream.text().endswith(whole[-(limit // 2) :])
        assert f"{stream.missing} characters are missing" in stream.text()


def test_a_flood_of_single_characters_takes_neither_time_nor_objects() -> None:
    stream = StreamText(1 << 16)
    stream.add("x" * (1 << 20))
    began = time.process_time()
    for _ in range(200_000):
        stream.add("y")
    assert time.process_time() - began < 5 * _QUICK_S
    assert stream.text().endswith("y" * (1 << 15))
    assert len(stream._head) + len(stream._tail or ()) < 100


def test_stretches_of_a_stream_stand_where_they_came() -> None:
    outputs = Outputs()
    outputs.stream("stdout", "a")
    outputs.stream("stdout", "b")
    show(outputs, "D")
    outputs.stream("stdout", "c\n")
    outputs.stream("stderr", "e")
    outputs.stream("stdout", "d")
    assert texts(outputs) == ["ab", "D", "c\n", "e", "d"]
    assert outputs.streams["stdout"].text() == "abc\nd"
    assert outputs.read() == "ab\nD\nc\nd"
    assert not outputs.truncated


def test_an_update_changes_every_display_of_its_id_and_no_other() -> None:
    outputs = Outputs()
    for display_id in ("d", "other", "d"):
        show(outputs, "1", display_id=display_id)
    update(outputs, "d", "2")
    update(outputs, "nobody", "3")
    assert texts(outputs) == ["2", "1", "2"]
    assert all("transient" not in output for output in outputs.listed())


def test_clearing_waits_for_what_comes_next_if_it_is_told_so() -> None:
    outputs = Outputs()
    outputs.stream("stdout", "one")
    outputs.clear(wait=True)
    assert texts(outputs) == ["one"]
    outputs.stream("stdout", "two")
    assert texts(outputs) == ["two"]
    outputs.clear(wait=False)
    assert texts(outputs) == []


def test_a_display_that_was_cleared_is_not_updated() -> None:
    outputs = Outputs()
    show(outputs, "1", display_id="d")
    outputs.clear(wait=False)
    show(outputs, "1")
    update(outputs, "d", "2")
    assert texts(outputs) == ["1"]


def test_frames_that_were_cleared_take_no_room() -> None:
    outputs = Outputs()
    for frame in range(100):
        outputs.clear(wait=True)
        show(outputs, str(frame) * (DISPLAY_BYTES // 20))
    assert texts(outputs) == ["99" * (DISPLAY_BYTES // 40) * 2]
    assert not outputs.truncated


def test_a_display_that_is_updated_again_and_again_takes_its_room_once() -> None:
    outputs = Outputs()
    show(outputs, "", display_id="d")
    for frame in range(100):
        update(outputs, "d", f"{frame} " + "x" * (DISPLAY_BYTES // 10))
    assert texts(outputs)[0].startswith("99 ")
    assert not outputs.truncated


def test_displays_beyond_the_bound_are_missing_and_that_is_told() -> None:
    outputs = Outputs()
    kept = [show(outputs, "x" * (1 << 20)) for _ in range(20)]
    assert sum(kept) == 7
    assert outputs.truncated
    outputs = Outputs()
    for _ in range(MOST_OUTPUTS + 1):
        show(outputs, "x")
    assert len(outputs.listed()) == MOST_OUTPUTS
    assert outputs.truncated


def test_the_end_of_a_stream_is_kept_though_no_display_has_room() -> None:
    outputs = Outputs()
    for _ in range(20):
        show(outputs, "x" * (1 << 20))
    for number in range(2 * MOST_OUTPUTS):
        outputs.stream("stderr" if number % 2 else "stdout", f"{number}\n")
    outputs.stream("stdout", "LAST")
    assert outputs.streams["stdout"].text().endswith("LAST")
    assert outputs.truncated


MEDIA = st.sampled_from(["text/plain", "text/html", "image/png", "application/json", ""])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("stream"), st.sampled_from(["stdout", "stderr"]), st.text(max_size=20)),
        st.tuples(st.just("show"), st.sampled_from(["", "d", "e"]), st.text(max_size=20)),
        st.tuples(st.just("update"), st.sampled_from(["", "d", "e"]), st.text(max_size=20)),
        st.tuples(st.just("clear"), st.sampled_from(["", "wait"]), st.just("")),
    )
)


@given(STEPS)
def test_whatever_comes_a_notebook_can_hold_it(steps: list[tuple[str, str, str]]) -> None:
    outputs = Outputs()
    printed = {"stdout": "", "stderr": ""}
    for step, which, text in steps:
        if step == "stream":
            outputs.stream(which, text)
            printed[which] += text
        elif step == "show":
            show(outputs, text, display_id=which)
        elif step == "update":
            update(outputs, which, text)
        else:
            outputs.clear(wait=bool(which))
    check_outputs(outputs.listed())
    assert {name: stream.text() for name, stream in outputs.streams.items()} == printed
    assert not outputs.truncated
    outputs.read()


def test_bounds_are_those_that_are_told() -> None:
    outputs = Outputs()
    for _ in range(5):
        outputs.stream("stdout", "x" * STREAM_CHARS)
    assert outputs.size <= DISPLAY_BYTES + 2 * STREAM_CHARS
    assert outputs.streams["stdout"].missing == 4 * STREAM_CHARS
    assert outputs.truncated


class Data(dict[str, str]):
    """One that can be seen to go."""


def test_updates_cost_the_same_however_many_displays_they_change() -> None:
    outputs = Outputs()
    for _ in range(10_000):
        show(outputs, "1", display_id="d")
    for number in range(20_000):  # 200 million changes, if each were made
        update(outputs, "d", str(number))
    assert texts(outputs) == ["19999"] * 10_000


def test_what_was_shown_before_an_update_is_not_kept() -> None:
    outputs = Outputs()
    data = Data({"text/plain": "x"})
    seen = ref(data)
    output = {"output_type": "display_data", "data": data, "metadata": {}}
    outputs.show({**output, "transient": {"display_id": "d"}}, size=1000)
    del data, output
    update(outputs, "d", "2")
    assert seen() is None
    assert texts(outputs) == ["2"]


def test_a_text_of_many_displays_keeps_head_and_tail_and_says_so() -> None:
    outputs = Outputs()
    show(outputs, "first " + "x" * STREAM_CHARS)
    show(outputs, "y" * STREAM_CHARS + " last")
    assert not outputs.truncated
    text = outputs.read()
    assert (text[:5], text[-4:]) == ("first", "last")
    assert len(text) < TEXT_CHARS + 100
    assert outputs.truncated
