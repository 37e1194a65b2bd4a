"""API keys, from the file itself or from files of their own; never shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sandboxd.model.quota import Quota
from sandboxd.settings.nouns import ApiKey
from sandboxd.settings.schema import ApiKeyTable

Complain = Callable[[str, str], None]  # key of the file, what is wrong and its mend


def read_keys(
    tables: Sequence[ApiKeyTable], *, source: Path | None, complain: Complain
) -> tuple[ApiKey, ...]:
    """The keys with their names; what cannot be used is complained of and left out.

    source: the configuration file; a relative `key_file` lies beside it.
    """
    keys: list[ApiKey] = []
    for index, table in enumerate(tables):
        place = f"server.api_keys[{index}]"
        try:
            key = _read_key(table, source)
            _check_key(table.name, key, keys)
        except ValueError as error:
            complain(place, str(error))
        else:
            quota = Quota(**table.quota.model_dump())
            file = _key_path(table, source)
            keys.append(ApiKey(name=table.name, key=key, file=file, quota=quota))
    return tuple(keys)


def _read_key(table: ApiKeyTable, source: Path | None) -> str:
    path = _key_path(table, source)
    if path is None:
        return table.key or ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        msg = f"cannot read {path}: {why}; put the key there, readable by the daemon's user"
        raise ValueError(msg) from None  # the cause may quote the key


def _key_path(table: ApiKeyTable, source: Path | None) -> Path | None:
    if table.key_file is None:
        return None
    path = Path(table.key_file)
    return path if source is None else source.parent / path


def _check_key(name: str, key: str, others: Sequence[ApiKey]) -> None:
    if not key:
        msg = "the key is empty; put one there"
    elif not key.isascii() or not key.isprintable() or " " in key:
        msg = "the key must be printable ASCII without spaces, as it travels in a header"
    elif any(name == other.name for other in others):
        msg = f"`{name}` is given twice; each key needs a name of its own"
    elif any(key == other.key for other in others):
        msg = "the same key is given twice; each name needs a key of its own"
    else:
        return
    raise ValueError(msg)
