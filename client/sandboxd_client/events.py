"""What `stream()` and `Process.events()` yield: a closed union to `match` on."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sandboxd_client._core.fields import needed
from sandboxd_client.errors import error_from_problem
from sandboxd_client.results import ExecResult


@dataclass(frozen=True, slots=True)
class Started:
    """The command runs. `started_at` in Unix time."""

    seq: int
    started_at: float | None = None


@dataclass(frozen=True, slots=True)
class Stdout:
    """A piece of standard output; `offset` is its byte position in that stream."""

    seq: int
    offset: int
    data: bytes

    @property
    def text(self) -> str:
        """As text; pieces are cut at character borders, undecodable bytes are replaced."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Stderr:
    """A piece of standard error; `offset` is its byte position in that stream."""

    seq: int
    offset: int
    data: bytes

    @property
    def text(self) -> str:
        """As text; pieces are cut at character borders, undecodable bytes are replaced."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Gap:
    """`bytes` bytes of a stream from `offset` on were not kept for this reader."""

    seq: int
    stream: Literal["stdout", "stderr"]
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event: how the command went. The result's texts are empty, they came as events."""

    seq: int
    result: ExecResult


ExecEvent = Started | Stdout | Stderr | Gap | Ended


def event_from_json(told: Mapping[str, Any]) -> ExecEvent | None:
    """One line of an event stream; None for what only keeps the line alive, or is newer than we.

    Raises the typed error that an `error` event carries.
    """
    seq = told.get("seq") or 0
    match needed(told, "type"):
        case "stdout":
            return Stdout(seq, needed(told, "offset"), _data(told))
        case "stderr":
            return Stderr(seq, needed(told, "offset"), _data(told))
        case "started":
            return Started(seq, told.get("started_at"))
        case "gap":
            return Gap(seq, needed(told, "stream"), needed(told, "offset"), needed(told, "bytes"))
        case "ended":
            return Ended(seq, ExecResult.from_json(told.get("exec") or told))
        case "error":
            raise error_from_problem(told.get("problem") or told.get("error") or told)
        case _:
            return None


def _data(told: Mapping[str, Any]) -> bytes:
    text: str | None = told.get("data")
    if text is not None:
        return text.encode("utf-8", "surrogatepass")
    return base64.b64decode(needed(told, "data_b64"))
