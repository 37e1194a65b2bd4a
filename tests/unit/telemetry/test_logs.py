"""What a caller or a sandbox wrote can be no line of the log, and no command to a terminal."""

from __future__ import annotations

import json
import subprocess
import sys

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


def test_what_libraries_log_is_a_line_of_the_same_form() -> None:
    program = """
import logging, structlog
from sandboxd.telemetry.logs import set_up_logs
set_up_logs(style="json")
logging.getLogger("urllib3").info("a request with a token")
logging.getLogger("a.library").warning("could not %s\\nat all", "send")
try:
    raise ValueError("why")
except ValueError:
    logging.getLogger("a.library").exception("it broke")
structlog.get_logger("ours").info("done", number=1)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    warning, broken, ours = map(json.loads, done.stderr.splitlines())
    assert (warning["logger"], warning["level"]) == ("a.library", "warning")
    assert warning["event"] == "could not send\\nat all"
    assert "ValueError: why" in broken["exception"]
    assert {"timestamp", "level", "event"} <= warning.keys() & ours.keys()
