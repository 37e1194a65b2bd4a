"""How an engine is told which system calls to filter: by the profile's text, Podman by a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anyio import to_thread

from sandboxd.backends.docker.engine import Engine, EngineRefused
from sandboxd.backends.docker.probing import Info, has_seccomp
from sandboxd.backends.docker.reaching.host_paths import HostPaths
from sandboxd.backends.docker.refusals import call_refused
from sandboxd.linux.seccomp_profile import profile_for

_FILE = "seccomp.json"


async def seccomp_option(
    engine: Engine, info: Info, *, home: Path, paths: HostPaths, near: bool
) -> str:
    """What follows `seccomp=`; empty: the engine's own profile stays, if it has any.

    home: where a file may be kept. near: whether the engine sees our files.
    Raises `backend_unavailable`, OSError.
    """
    if not has_seccomp(info):
        return ""
    profile = profile_for(str(info.get("Architecture", "")))
    if not await _is_podman(engine):
        return profile
    if not near:
        return ""
    place = home / _FILE
    await to_thread.run_sync(_write, place, profile)
    return paths.to_host(place)


def _write(place: Path, text: str) -> None:
    draft = place.with_suffix(".new")
    draft.write_text(text)
    draft.replace(place)


async def _is_podman(engine: Engine) -> bool:
    try:
        said: dict[str, Any] = await engine.call(engine.api.version)
    except EngineRefused as refusal:
        raise call_refused(refusal) from refusal
    return any("Podman" in str(part.get("Name")) for part in said.get("Components") or ())
