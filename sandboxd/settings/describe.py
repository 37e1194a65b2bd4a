"""The rows of the configuration reference, read from the schema so that the two cannot drift."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sandboxd.settings.schema import NetworkTable, SettingsFile, inner_table
from sandboxd.settings.variables import VARIABLES

_WORDS: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One key: dotted name, type in words, default as TOML (empty: unset), meaning, variable.

    default is `required` where a value must be given.
    """

    key: str
    type: str
    default: str
    meaning: str
    variable: str = ""


def describe_settings() -> list[SettingRow]:
    """Every key that a configuration file may have, in the file's order."""
    return list(_rows(SettingsFile, ""))


def _rows(table: type[BaseModel], prefix: str) -> Iterator[SettingRow]:
    variables = {variable.key: variable.name for variable in VARIABLES}
    for name, info in table.model_fields.items():
        key = prefix + name
        inner, step = inner_table(info.annotation)
        if inner is None or inner is NetworkTable:
            yield SettingRow(
                key=key,
                type=_type(info.annotation),
                default=_default(info),
                meaning=info.description or "",
                variable=variables.get(key, ""),
            )
        else:
            yield from _rows(inner, f"{key}{step}.")


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is NetworkTable:
        return "string or table"
    if origin is Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return " | ".join(f'"{value}"' for value in arguments)
    if origin is list:
        return f"array of {_type(arguments[0])}s"
    if origin is dict:
        return f"table of {_type(arguments[1])}s"
    if type(None) in arguments:
        return _type(arguments[0])
    return _WORDS.get(annotation, str(annotation))


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, NetworkTable):
        return f'"{value.kind}"'
    return "" if value is None else json.dumps(value)
