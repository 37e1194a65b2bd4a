"""Values that are right by themselves and wrong together."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from sandboxd.guest.inside import GUEST_INSIDE, SHARED_INSIDE
from sandboxd.model.mcp_server import OWN_SERVER, flaw
from sandboxd.model.template import Mount
from sandboxd.settings.nouns import Settings

# A socket's path is RUN_DIR/<id of the box>/s.sock and must stay under 100 bytes.
_RUN_DIR_BYTES = 60
# What a sandbox is made of: nothing may be mounted on it or below it, or over it as a whole.
_OWN_PLACES = frozenset({"/proc", "/sys", "/dev", SHARED_INSIDE, GUEST_INSIDE})
_WHOLE = frozenset({"/", "/run", "/usr", "/etc", "/bin", "/sbin", "/lib", "/lib64"})
_BRIDGE_PORTS = 1000  # 1023, and some of them are the engine's
Misfit = tuple[str, str]  # key of the file, what is wrong and its mend


def misfits(settings: Settings) -> Iterator[Misfit]:
    """Each with its mend."""
    yield from _sizes(settings)
    yield from _unknown_templates(settings)
    yield from _mcp_servers(settings)
    for name, template in settings.templates.items():
        key = f"templates.{name}.mounts"
        yield from _mounts(key, template.spec.mounts)
        yield from _sources(key, template.spec.mounts, settings)
    if settings.backend.kind == "local":
        yield from _images_unfit_for_local(settings)
    if settings.backend.kind in {"docker", "kubernetes"}:
        yield from _images_unfit_for_an_engine(settings)
    if settings.backend.kind == "docker":
        yield from _crowded_bridge(settings)


def _sizes(settings: Settings) -> Iterator[Misfit]:
    run_dir = settings.backend.run_dir
    if run_dir is not None and len(os.fsencode(run_dir)) > _RUN_DIR_BYTES:
        text = f"is over {_RUN_DIR_BYTES} bytes, too long for the sockets below it"
        yield "backend.run_dir", f"{text}; choose a shorter folder"
    ready = sum(template.pool.ready for template in settings.templates.values())
    most = settings.limits.max_sandboxes
    if ready > most:
        text = f"{most} is under the {ready} that all pools keep `ready`"
        yield "limits.max_sandboxes", f"{text}; raise it or keep less"


def _unknown_templates(settings: Settings) -> Iterator[Misfit]:
    for dialect, images in settings.compat.items():
        for image, template in images.items():
            if template not in settings.templates:
                yield f'compat.{dialect}.images."{image}"', _no_template(settings, template)


def _mcp_servers(settings: Settings) -> Iterator[Misfit]:
    for name, shared in settings.mcp_servers.items():
        if shared.template not in settings.templates:
            yield f"mcp_servers.{name}.template", _no_template(settings, shared.template)
        if name == OWN_SERVER:
            yield f"mcp_servers.{name}", "is the daemon's own; choose another name"
        if (text := flaw(shared.server)) is not None:
            yield f"mcp_servers.{name}", text
    for template in settings.templates.values():
        for server in template.mcp_servers:
            key = f"templates.{template.name}.mcp_servers.{server.name}"
            if (text := flaw(server)) is not None:
                yield key, text
            if server.scope == "shared" and server.name not in settings.mcp_servers:
                text = f"there is no shared server `{server.name}`"
                yield f"{key}.scope", f"{text}; declare [mcp_servers.{server.name}]"


def _mounts(key: str, mounts: tuple[Mount, ...]) -> Iterator[Misfit]:
    seen: set[str] = set()
    for number, mount in enumerate(mounts):
        target, place = mount.target, f"{key}[{number}].target"
        above = {target, *map(str, PurePosixPath(target).parents)}
        if target != "/" + posixpath.normpath(target).lstrip("/"):
            yield place, f"`{target}` is no plain path; write it without `..`, `.` or a last `/`"
        elif target in _WHOLE or above & _OWN_PLACES:
            text = f"`{target}` is the sandbox's own"
            yield place, f"{text}; choose a folder for it alone, like /data"
        elif target in seen:
            yield place, f"something is mounted on `{target}` already; choose another place"
        seen.add(target)


def _sources(key: str, mounts: tuple[Mount, ...], settings: Settings) -> Iterator[Misfit]:
    """Whoever sees another sandbox's socket may speak to its guest."""
    own = [place for place in (settings.state_dir, settings.backend.run_dir) if place is not None]
    for number, mount in enumerate(mounts):
        source = Path(posixpath.normpath(mount.source))
        for place in own:
            if source == place or source in place.parents or place in source.parents:
                text = f"`{source}` shows the daemon's own files in {place}"
                yield f"{key}[{number}].source", f"{text}; choose a folder beside them"


def _no_template(settings: Settings, wrong: str) -> str:
    known = ", ".join(f"`{name}`" for name in settings.templates) or "none"
    return f"there is no template `{wrong}`; there are {known}"


def _images_unfit_for_local(settings: Settings) -> Iterator[Misfit]:
    for name, template in settings.templates.items():
        image = template.spec.image
        if image != "host" and not image.startswith("/"):
            text = f"`{image}` is no image for the local backend"
            yield (
                f"templates.{name}.image",
                f'{text}; give "host" or the folder of an unpacked root',
            )


def _images_unfit_for_an_engine(settings: Settings) -> Iterator[Misfit]:
    for name, template in settings.templates.items():
        image = template.spec.image
        if image == "host" or image.startswith("/"):
            text = f"`{image}` is no image for the {settings.backend.kind} backend"
            yield f"templates.{name}.image", f"{text}; give a reference like python:3.12-slim"


def _crowded_bridge(settings: Settings) -> Iterator[Misfit]:
    """Only guests that are reached by TCP have their boxes on a bridge of ours."""
    docker = settings.backend.docker
    far = docker.host != "" and not docker.host.startswith("unix://")
    by_tcp = docker.guest == "tcp" or (docker.guest == "auto" and far)
    if docker.network or not by_tcp:
        return
    online = [each.pool.max for each in settings.templates.values()]
    most = min(sum(online), settings.limits.max_sandboxes)
    if most > _BRIDGE_PORTS:
        text = f"{most} sandboxes may be on one bridge, which takes about {_BRIDGE_PORTS}"
        mend = "lower each `pool.max`, or name a network of another kind"
        yield "backend.docker.network", f"{text}; {mend}"
