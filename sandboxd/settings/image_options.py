"""From the checked keys about images to the frozen noun."""

from __future__ import annotations

import os
from pathlib import Path

from sandboxd.settings.keys import Complain
from sandboxd.settings.nouns import ImageOptions, RegistryLogin
from sandboxd.settings.tables.image_keys import ImageKeys


def image_options(
    keys: ImageKeys, *, prefix: str, source: Path | None, complain: Complain
) -> ImageOptions:
    """What the keys say; a password file that cannot be read is complained of.

    prefix: of the keys, as `backend.docker`. source: the configuration file; a relative
    `password_file` lies beside it.
    """
    logins = {}
    for host, table in keys.registries.items():
        path = Path(table.password_file)
        path = path if source is None else source.parent / path
        if not os.access(path, os.R_OK):
            key = f'{prefix}.registries."{host}".password_file'
            complain(key, f"cannot read {path}; put the password there, readable by the daemon")
        logins[host] = RegistryLogin(username=table.username, password_file=path)
    return ImageOptions(
        registries=logins,
        allow_images=tuple(keys.allow_images),
        disk_mb=keys.image_disk_mb,
        pulls_per_registry=keys.pulls_per_registry,
        stall_s=keys.pull_stall_s,
    )
