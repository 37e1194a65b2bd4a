"""One TOML file, overridden by variables, overridden by flags, checked as a whole.

Refuses everything at once: the error carries each problem with its place and its mend.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sandboxd.settings.build import build
from sandboxd.settings.keys import Complain
from sandboxd.settings.nouns import Settings
from sandboxd.settings.problems import Problem, SettingsError, describe, dotted
from sandboxd.settings.schema import SettingsFile
from sandboxd.settings.variables import overrides_from

_FILE_BYTES = 4 << 20
# What stands for a file that nobody gave: one template on what every machine has.
_DEFAULT_READY = 2
_DEFAULT_IMAGES = {"docker": "python:3.12-slim", "kubernetes": "python:3.12-slim"}


def load_settings(
    path: Path | None, *, env: Mapping[str, str], overrides: Mapping[str, object] | None = None
) -> Settings:
    """Read, override and check.

    path: the TOML file, None for the built-in default (one template `python`).
    env: the process environment, for `SANDBOXD_…` and default places.
    overrides: dotted key → value (`{"server.port": 0}`), which beats both; None values set nothing.

    Raises SettingsError with every problem found.
    """
    flags = {key: value for key, value in (overrides or {}).items() if value is not None}
    variables, sources, problems = overrides_from(env)
    sources |= dict.fromkeys(flags, "command line")
    tree = _built_in(variables | flags) if path is None else _read(path)
    file_name = str(path) if path is not None else "built-in defaults"

    def complain(key: str, text: str) -> None:
        problems.append(Problem(source=sources.get(key, file_name), key=key, text=text))

    for key, value in (variables | flags).items():
        _put(tree, key, value)
    settings = _check(tree, path=path, env=env, complain=complain)
    if problems or settings is None:
        raise SettingsError(problems)
    return settings


def _check(
    tree: dict[str, Any], *, path: Path | None, env: Mapping[str, str], complain: Complain
) -> Settings | None:
    try:
        file = SettingsFile.model_validate(tree)
    except ValidationError as error:
        for place, text in describe(error):
            complain(dotted(place), text)
        return None
    return build(file, source=path, env=env, complain=complain)


def _built_in(overrides: Mapping[str, object]) -> dict[str, Any]:
    image = _DEFAULT_IMAGES.get(str(overrides.get("backend.kind")), "host")
    most = overrides.get("limits.max_sandboxes")
    ready = min(_DEFAULT_READY, most) if isinstance(most, int) and most > 0 else _DEFAULT_READY
    return {"templates": {"python": {"image": image, "pool": {"ready": ready}}}}


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            data = stream.read(_FILE_BYTES + 1)
    except OSError as error:
        raise _whole(
            path, f"cannot be read: {error.strerror}; give the path of a TOML file"
        ) from error
    if len(data) > _FILE_BYTES:
        raise _whole(path, "is over 4 MiB; a configuration is smaller")
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise _whole(path, f"is not UTF-8 at byte {error.start}; save it as UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise _whole(path, f"is not TOML: {error}; mend that line") from error


def _whole(path: Path, text: str) -> SettingsError:
    return SettingsError([Problem(source=str(path), key="", text=text)])


def _put(tree: dict[str, Any], key: str, value: object) -> None:
    """Set a dotted key, making tables on the way; what is no table is left for validation."""
    *tables, last = key.split(".")
    for table in tables:
        inner = tree.setdefault(table, {})
        if not isinstance(inner, dict):
            return
        tree = inner
    tree[last] = value
