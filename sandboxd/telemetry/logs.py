"""Structured logs: one JSON object a line on standard error, or plain lines for a terminal."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog


def set_up_logs(*, style: Literal["json", "plain"] = "json", level: str = "info") -> None:
    """Set up logging for the whole process. Call once, in the composition root."""
    number = logging.getLevelNamesMapping()[level.upper()]
    renderer: structlog.typing.Processor
    if style == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[*_steps(structlog.contextvars.merge_contextvars), renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    _set_up_libraries(renderer)


def _set_up_libraries(renderer: structlog.typing.Processor) -> None:
    """Their own loggers: warnings only, and never request lines, which may hold tokens. One form
    for all lines, so that whoever reads them by machine need know no other.
    """
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_steps(structlog.stdlib.add_logger_name),
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[lines], force=True)


def _steps(more: structlog.typing.Processor) -> list[structlog.typing.Processor]:
    """What is done to every line before it is written. more: what only lines of that kind have."""
    return [
        escape_controls,
        more,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]


def escape_controls(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Make what callers and sandboxes wrote one harmless line: an error may quote them.

    Runs before tracebacks, the only texts of several lines, are made.
    """
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[name] = value.encode("unicode_escape", "backslashreplace").decode("ascii")
    return event
