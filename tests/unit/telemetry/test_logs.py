"""What a caller or a sandbox wrote can be no line of the log, and no command to a terminal."""

from __future__ import annotations

import structlog

from sandboxd.telemetry.logs import escape_controls


def escaped(value: object) -> object:
    event: structlog.typing.EventDict = {"event": "make.failed", "error": value}
    return escape_controls(None, "warning", event)["error"]


def test_breaks_and_controls_are_written_out() -> None:
    assert escaped("a\n2026 [error] b\x1b[2J\u2028\x85") == "a\\n2026 [error] b\\x1b[2J\\u2028\\x85"
    assert escaped("half \ud800") == "half \\ud800"


def test_ordinary_values_stay_as_they_are() -> None:
    for value in ("plain, with é and 日本", "", 7, None, ["x\n"]):
        assert escaped(value) == value
