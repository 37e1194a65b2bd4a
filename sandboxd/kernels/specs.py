"""Kernelspecs inside a sandbox: which kernels its image can start, and how.

They are found as Jupyter finds them, by files alone, so that an image without Python has its
kernels too. `python3` needs none: whoever has ipykernel has that kernel.
"""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from sandboxd.errors import SandboxdError
from sandboxd.guest.client import Guest
from sandboxd.wire.codes import ErrorCode, Fault

DEFAULT = "python3"

_MOST_BYTES = 1 << 18
_MOST_SPECS = 64
_MOST_NAMES = 256  # that are looked at in each place
_MOST_WORDS = 64
_USUAL_PATH = "/usr/local/bin:/usr/bin"
_SYSTEM = ("/usr/local/share/jupyter", "/usr/share/jupyter")
_ABSENT = {
    ErrorCode.FILE_NOT_FOUND,
    ErrorCode.FILE_NOT_DIRECTORY,
    ErrorCode.FILE_FORBIDDEN,
    ErrorCode.FILE_IS_DIRECTORY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec:
    """How a kernel is started. interrupted_by_message: not by a signal."""

    name: str
    argv: tuple[str, ...]
    display_name: str = ""
    language: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    interrupted_by_message: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)


def python_spec(program: str = "python3") -> KernelSpec:
    """The kernel of a Python that has ipykernel."""
    return KernelSpec(
        name=DEFAULT,
        argv=(program, "-m", "ipykernel_launcher", "-f", "{connection_file}"),
        display_name="Python 3 (ipykernel)",
        language="python",
    )


def folders(env: Mapping[str, str], *, home: str = "/root") -> list[str]:
    """Where kernelspecs may lie, the first that has a name wins. env: as commands have it."""
    data = [part for part in env.get("JUPYTER_PATH", "").split(":") if part.startswith("/")]
    data.append(env.get("JUPYTER_DATA_DIR") or posixpath.join(home, ".local/share/jupyter"))
    data.extend(
        posixpath.join(posixpath.dirname(programs), "share/jupyter")
        for programs in (env.get("PATH") or _USUAL_PATH).split(":")
        if programs.startswith("/") and programs.endswith("/bin")
    )
    data.extend(_SYSTEM)
    return list(dict.fromkeys(posixpath.join(folder, "kernels") for folder in data))


async def find_spec(guest: Guest, name: str, *, places: list[str]) -> KernelSpec:
    """Raises `start_failed` (fault task) for one that the image does not have."""
    for place in places:
        if (spec := await _read(guest, posixpath.join(place, name))) is not None:
            return spec
    if name == DEFAULT:
        return python_spec()
    there_are = ", ".join(spec.name for spec in await list_specs(guest, places=places))
    raise SandboxdError(
        ErrorCode.START_FAILED,
        f"there is no kernelspec {name!r} in this sandbox, but {there_are}; it was looked for in "
        + ", ".join(places),
        fault=Fault.TASK,
        mask=True,
        details={"spec": name},
    )


async def list_specs(guest: Guest, *, places: list[str]) -> list[KernelSpec]:
    """Every kernelspec, and `python3` whether there is a file for it or not."""
    found: dict[str, KernelSpec] = {}
    for place in places:
        async for name in _names(guest, place):
            if name not in found and len(found) < _MOST_SPECS:
                spec = await _read(guest, posixpath.join(place, name))
                if spec is not None:
                    found[name] = spec
    return list({DEFAULT: python_spec(), **found}.values())


async def _names(guest: Guest, place: str) -> AsyncIterator[str]:
    try:
        async with aclosing(guest.files.list_page(place, limit=_MOST_NAMES)) as entries:
            async for entry in entries:
                yield entry.name
    except SandboxdError as error:
        if error.code not in _ABSENT:
            raise


async def _read(guest: Guest, folder: str) -> KernelSpec | None:
    """None for a folder without a kernelspec, or with one that is none."""
    try:
        path = posixpath.join(folder, "kernel.json")
        async with guest.files.read(path, limit=_MOST_BYTES) as body:
            data = b"".join([piece async for piece in body.chunks()])
    except SandboxdError as error:
        if error.code in _ABSENT:
            return None
        raise
    try:
        # Strictly, for it is passed on: half characters and what is no number are refused.
        said = from_json(data, allow_inf_nan=False)
        return read_spec(posixpath.basename(folder), said, folder=folder)
    except ValueError:
        return None


def read_spec(name: str, said: Any, *, folder: str) -> KernelSpec:
    """A kernelspec from its file's JSON. Raises ValueError for what is none."""
    if not isinstance(said, dict):
        raise ValueError("no object")  # noqa: TRY004 - of what was read, not of what was passed
    argv = said.get("argv")
    if not isinstance(argv, list) or not 0 < len(argv) <= _MOST_WORDS:
        raise ValueError("no argv")
    env, metadata = said.get("env"), said.get("metadata")
    return KernelSpec(
        name=name,
        argv=tuple(_placed(words, folder) for words in _texts(argv)),
        display_name=str(said.get("display_name") or name)[:256],
        language=str(said.get("language") or "")[:64],
        env=dict(_variables(env)) if isinstance(env, dict) else {},
        interrupted_by_message=said.get("interrupt_mode") == "message",
        metadata=metadata if isinstance(metadata, dict) else {},
    )


def _texts(words: list[Any]) -> Iterator[str]:
    for word in words:
        if not isinstance(word, str) or "\0" in word:
            raise ValueError("a word of argv is no text")
        yield word


def _variables(env: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Those that a program can be given."""
    for name, value in env.items():
        if name and isinstance(value, str) and not {"=", "\0"} & set(name) and "\0" not in value:
            yield name, value


def _placed(word: str, folder: str) -> str:
    prefix = posixpath.normpath(posixpath.join(folder, "../../../.."))
    return word.replace("{resource_dir}", folder).replace("{prefix}", prefix)
