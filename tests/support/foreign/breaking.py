"""What breaks under a rollout, in the middle of it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from typing import Any

import httpx

from sandboxd.backends.local.boxes import parse_documents
from tests.support.foreign.openai_server import Script, Turn
from tests.support.service import Service


def breaking(script: Script, how: Callable[[], None], *, turn: int = 2) -> Script:
    """The same script, but for what happens as that turn is asked for the first time."""
    happened: list[bool] = []

    def say(messages: list[dict[str, Any]]) -> Turn:
        if [each["role"] for each in messages].count("assistant") == turn and not happened:
            happened.append(True)
            how()
        return script(messages)

    return say


def leased(daemon: Service) -> str:
    """The id of the one sandbox that is leased."""
    (found,) = httpx.get(f"{daemon.url}/v1/sandboxes").json()["sandboxes"]
    return str(found["id"])


def kill_the_leased_box(daemon: Service) -> None:
    """kill -9 of its first process, from outside: of which nobody inside is the cause."""
    diary = httpx.get(f"{daemon.url}/v1/sandboxes/{leased(daemon)}/logs").text
    (box_id,) = re.findall(r'"box_id":"(box-\w+)"', diary)
    record = parse_documents((daemon.state / "boxes" / box_id / "box.json").read_text())
    os.kill(int(record["process"]["pid"]), signal.SIGKILL)
