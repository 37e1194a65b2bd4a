"""Who we are at a registry: our settings first, else the docker configuration of our user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from docker.auth import encode_header, load_config
from docker.errors import DockerException

from sandboxd.backends.docker.imaging.nouns import Login
from sandboxd.backends.docker.imaging.verdicts import unfit
from sandboxd.errors import SandboxdError
from sandboxd.model.image import ImageName
from sandboxd.wire.codes import Fault


def auth_header(name: ImageName, logins: Mapping[str, Login]) -> str:
    """What the engine passes on to the registry of `name`; empty where we are nobody there.

    Where the settings name no login, `~/.docker/config.json` counts with its credential helpers,
    as it does for the docker command. Blocking. Raises `image_unavailable`, fault infra, where
    credentials cannot be read; neither they nor what is around them is in its text.
    """
    login = logins.get(name.registry)
    if login is not None:
        return _encoded({"username": login.username, "password": _password(name, login)})
    try:
        # Read for each pull: `docker login` may have been called since.
        found: Any = load_config().resolve_authconfig(name.registry)
    except (DockerException, OSError, ValueError):
        raise _unreadable(name, "the docker configuration of the daemon's user") from None
    return _encoded(found) if found else ""


def _encoded(credentials: Mapping[str, Any]) -> str:
    header: bytes | str = encode_header(dict(credentials))
    return header.decode() if isinstance(header, bytes) else header


def _password(name: ImageName, login: Login) -> str:
    try:
        return login.password_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise _unreadable(name, str(login.password_file)) from None


def _unreadable(name: ImageName, place: str) -> SandboxdError:
    error = unfit(
        str(name), f"the credentials for {name.registry} cannot be read from {place}: mend that"
    )
    return SandboxdError(error.code, error.detail, fault=Fault.INFRA, details=error.details)
