"""Records of boxes survive whatever a crash leaves behind."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxd.backends.local.boxes import BoxRecord, BoxShelf, BoxStatus, parse_status
from sandboxd.errors import SandboxdError
from sandboxd.linux.processes import ProcessMark
from sandboxd.wire.codes import ErrorCode

RECORD = BoxRecord(
    box_id="box-a", labels={"pool": "p"}, disk_limit_bytes=1, memory_limit_bytes=2, process=None
)
MARK = ProcessMark(pid=1, start_ticks=2, pid_ns=3, boot_id="b")


@pytest.fixture
def shelf(tmp_path: Path) -> BoxShelf:
    (tmp_path / "state" / "boxes").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    return BoxShelf(tmp_path / "state", tmp_path / "run", tag="t")


def test_a_record_is_read_as_it_was_written(shelf: BoxShelf) -> None:
    shelf.create(RECORD)
    assert shelf.read("box-a") == RECORD
    shelf.note_process("box-a", MARK)
    assert shelf.read("box-a") == replace(RECORD, process=MARK)


def test_a_process_that_was_half_written_down_is_none(shelf: BoxShelf) -> None:
    log = shelf.create(RECORD).log
    shelf.note_process("box-a", MARK)
    os.truncate(log, log.stat().st_size - 4)
    assert shelf.read("box-a") == RECORD


def test_the_short_way_leads_to_the_box_and_goes_with_the_shelf(
    shelf: BoxShelf, tmp_path: Path
) -> None:
    shelf.open()
    places = shelf.create(RECORD)
    assert places.shared.resolve() == places.run.resolve()
    shelf.open()
    shelf.close()
    shelf.close()
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"box_id": "box-a"}', "\0\0\0"])
def test_a_broken_record_is_remains_and_no_crash(shelf: BoxShelf, text: str) -> None:
    shelf.create(RECORD).log.write_text(text)
    assert shelf.read("box-a") is None
    assert shelf.list_ids() == ["box-a"]


@pytest.mark.parametrize("box_id", ["", ".", "..", "../x", "a/b", "a\n", ".trial-1", "x" * 80])
def test_an_id_that_is_no_plain_name_is_refused(shelf: BoxShelf, box_id: str) -> None:
    with pytest.raises(SandboxdError) as caught:
        shelf.places(box_id)
    assert caught.value.code is ErrorCode.BAD_REQUEST


def test_two_boxes_of_one_name_cannot_be(shelf: BoxShelf) -> None:
    shelf.create(RECORD)
    with pytest.raises(SandboxdError) as caught:
        shelf.create(RECORD)
    assert caught.value.code is ErrorCode.CONFLICT
    assert shelf.read("box-a") == RECORD


def test_removing_leaves_nothing_and_twice_is_success(shelf: BoxShelf, tmp_path: Path) -> None:
    shelf.create(RECORD)
    shelf.remove("box-a")
    shelf.remove("box-a")
    assert shelf.list_ids() == []
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", BoxStatus()),
        ('{ "child-pid": 7, "pid-namespace": 9 }\n', BoxStatus(pid=7, pid_ns=9)),
        ('{ "child-pid": 7 }\n{ "exit-code": 137 }\n', BoxStatus(pid=7, exit_code=137)),
        ('{ "child-pid": 7 }\n{ "exit-c', BoxStatus(pid=7)),
        ("nonsense", BoxStatus()),
    ],
)
def test_bubblewraps_report_is_read_as_far_as_it_goes(text: str, status: BoxStatus) -> None:
    assert parse_status(text) == status
