"""Values that are right by themselves and wrong together."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sandboxd.settings.nouns import Settings

# A socket's path is RUN_DIR/<id of the box>/s.sock and must stay under 100 bytes.
_RUN_DIR_BYTES = 60
Misfit = tuple[str, str]  # key of the file, what is wrong and its mend


def misfits(settings: Settings) -> Iterator[Misfit]:
    """Each with its mend."""
    yield from _sizes(settings)
    yield from _unknown_templates(settings)
    yield from _shared_servers(settings)
    if settings.backend.kind == "local":
        yield from _images_unfit_for_local(settings)


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


def _shared_servers(settings: Settings) -> Iterator[Misfit]:
    for name, server in settings.mcp_servers.items():
        if server.scope != "shared":
            text = 'must be "shared" here; per-sandbox servers stand in their template'
            yield f"mcp_servers.{name}.scope", text
        if server.template not in settings.templates:
            yield f"mcp_servers.{name}.template", _no_template(settings, server.template)


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
