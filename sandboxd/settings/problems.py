"""What is wrong with a configuration, all of it at once, each with its mend."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sandboxd.settings.schema import SettingsFile, inner_table, is_secret

Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong.

    source: the file, `SANDBOXD_…` variable or flag it came from. key: the dotted place, empty for
    the whole. text: what is wrong and what mends it, one sentence without a secret.
    """

    source: str
    key: str
    text: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.source, self.key, self.text) if part)


class SettingsError(Exception):
    """The configuration cannot be used; `problems` is never empty."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


def dotted(place: Place) -> str:
    """`("server", "api_keys", 0, "name")` → `server.api_keys[0].name`."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = part.replace("-", "").replace("_", "").isalnum()
            text += ("." if text else "") + (part if bare else f'"{part}"')
    return text


def describe(error: ValidationError) -> Iterator[tuple[Place, str]]:
    """The place and the sentence of each thing that validation found."""
    for fact in error.errors(include_url=False):
        place = tuple(part for part in fact["loc"] if part != "[key]")
        yield place, _sentence(place, fact)


def _sentence(place: Place, fact: ErrorDetails) -> str:
    if fact["type"] == "extra_forbidden":
        return _unknown_key(place)
    if fact["type"] == "missing":
        return "is missing; give it"
    text = fact["msg"].removeprefix("Value error, ")
    text = text.replace("Input should be", "must be").replace("a valid dictionary", "a table")
    value = fact.get("input")
    if isinstance(value, str | int | float | bool) and not is_secret(place):
        return f"{text}; it is {_short(value)}"
    return text


def _short(value: str | float) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "…"


def _unknown_key(place: Place) -> str:
    """Names the nearest key of the same table, else of the whole file."""
    wrong = str(place[-1])
    table = _table_at(place[:-1])
    here = [] if table is None else list(table.model_fields)
    near = difflib.get_close_matches(wrong, here, n=1, cutoff=0.6)
    if near:
        return f"there is no such key; did you mean `{dotted((*place[:-1], near[0]))}`?"
    everywhere: dict[str, str] = {}  # where several tables have one of that name, the first
    for key in _all_keys(SettingsFile, ""):
        everywhere.setdefault(key.rpartition(".")[2], key)
    far = difflib.get_close_matches(wrong, list(everywhere), n=1, cutoff=0.7)
    if far:
        return f"there is no such key here; did you mean `{everywhere[far[0]]}`?"
    nearest = difflib.get_close_matches(wrong, here, n=1, cutoff=0.0)
    known = ", ".join(f"`{key}`" for key in here)
    return (
        f"there is no such key; the nearest is `{nearest[0]}`, all are {known}"
        if nearest
        else "there is no such key"
    )


def _all_keys(table: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, info in table.model_fields.items():
        inner, step = inner_table(info.annotation)
        if inner is None:
            yield prefix + name
        else:
            yield from _all_keys(inner, f"{prefix}{name}{step}.")


def _table_at(place: Place) -> type[BaseModel] | None:
    table: type[BaseModel] | None = SettingsFile
    parts = list(place)
    while parts and table is not None:
        info = table.model_fields.get(str(parts.pop(0)))
        table, step = inner_table(None if info is None else info.annotation)
        if step and parts:
            parts.pop(0)
    return table
