"""The kinds of values that a configuration file holds, and what every table of it refuses."""

from __future__ import annotations

import re
from keyword import iskeyword
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from sandboxd.egress.rules import read_entry
from sandboxd.egress.targets import read_forward

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_REGISTRY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?\Z")
_ENV_BYTES = 1 << 20


def _no_nul(text: str) -> str:
    if "\0" in text:
        msg = "must not hold a NUL character"
        raise ValueError(msg)
    return text


def _name(text: str) -> str:
    if not _NAME.match(text):
        msg = "must be 1 to 63 letters, digits, '.', '_' or '-', beginning with a letter or digit"
        raise ValueError(msg)
    return text


def _module_name(text: str) -> str:
    if not all(part.isidentifier() and not iskeyword(part) for part in text.split(".")):
        msg = 'must be the name of a module, as "numpy" or "os.path"'
        raise ValueError(msg)
    return text


def _absolute(text: str) -> str:
    if not text.startswith("/"):
        msg = "must be an absolute path, beginning with '/'"
        raise ValueError(msg)
    return text


def _installation(text: str) -> str:
    if text and not re.match(r"[a-z0-9]{8,32}\Z", text):
        msg = "must be 8 to 32 lower-case letters and digits, or empty"
        raise ValueError(msg)
    return text


def _environment(env: dict[str, str]) -> dict[str, str]:
    if any(not name or "=" in name for name in env):
        msg = "a variable's name must not be empty nor hold '='"
        raise ValueError(msg)
    if sum(len(name.encode()) + len(value.encode()) for name, value in env.items()) > _ENV_BYTES:
        msg = "must be at most 1 MiB together"
        raise ValueError(msg)
    return env


def _allowed_host(text: str) -> str:
    read_entry(text)
    return text


def _port_name(text: str) -> str:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        msg = 'must be a port, as a key of text: "8000"'
        raise ValueError(msg)
    return text


def _forward_target(text: str) -> str:
    read_forward(text)
    return text


def _registry(text: str) -> str:
    if not _REGISTRY.match(text):
        msg = "must be HOST or HOST:PORT, as image references begin; `docker.io` for Docker Hub"
        raise ValueError(msg)
    return text


def _url(text: str) -> str:
    if text and not re.match(r"https?://[^\s/?#]+(/[^\s?#]*)?\Z", text):
        msg = "must be an http:// or https:// URL without query, or empty"
        raise ValueError(msg)
    return text


Text = Annotated[str, AfterValidator(_no_nul)]
Name = Annotated[str, AfterValidator(_name)]
ModuleName = Annotated[Text, AfterValidator(_module_name)]
Filled = Annotated[Text, Field(min_length=1)]
AbsolutePath = Annotated[Text, AfterValidator(_absolute)]
Environment = Annotated[dict[Text, Text], AfterValidator(_environment)]
InstallationName = Annotated[str, AfterValidator(_installation)]
AllowedHost = Annotated[str, AfterValidator(_allowed_host)]
PortName = Annotated[str, AfterValidator(_port_name)]
ForwardTarget = Annotated[str, AfterValidator(_forward_target)]
RegistryHost = Annotated[str, AfterValidator(_registry)]
Url = Annotated[str, AfterValidator(_url)]


class Table(BaseModel):
    """A TOML table."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )
