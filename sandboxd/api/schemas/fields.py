"""Kinds of values in requests, and what every body is."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)

from sandboxd.egress.rules import read_entry
from sandboxd.egress.targets import read_forward
from sandboxd.model.ids import CALLER_ID_PATTERN, is_caller_id

MAX_ENV_BYTES = 1 << 20
MAX_LABELS = 64
_SIGNAL = r"^(SIG)?[A-Z0-9+-]{2,12}$"
MAX_SECONDS = 10 * 365 * 86400.0


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain a NUL character")
    return text


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must not contain a lone surrogate") from None
    return text


def _caller_id(text: str) -> str:
    if not is_caller_id(text):
        raise ValueError(f"must match {CALLER_ID_PATTERN}")
    return text


def _environment(env: dict[str, str]) -> dict[str, str]:
    for name in env:
        if not name or "=" in name:
            raise ValueError("a variable's name must not be empty and must not contain '='")
    size = sum(len(name.encode()) + len(value.encode()) + 2 for name, value in env.items())
    if size > MAX_ENV_BYTES:
        raise ValueError(f"is limited to {MAX_ENV_BYTES} bytes")
    return env


def _labels(labels: dict[str, str]) -> dict[str, str]:
    if len(labels) > MAX_LABELS:
        raise ValueError(f"at most {MAX_LABELS} labels")
    for key, value in labels.items():
        if not 0 < len(key) <= 63 or len(value) > 256:
            raise ValueError("a label has a key of 1 to 63 and a value of at most 256 characters")
    return labels


def _octal(value: Any) -> Any:
    """Permission bits as text are octal digits, as everywhere; as a number they are that number."""
    if isinstance(value, str):
        try:
            return int(value, 8)
        except ValueError:
            raise ValueError("give a number, or text of octal digits like 0644") from None
    return value


def _bytes(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            raise ValueError("is not base64") from None
    return value


def _allow_entry(text: str) -> str:
    read_entry(text)
    return text


def _forward_url(text: str) -> str:
    read_forward(text)
    return text


def _port(value: Any) -> Any:
    """A port as the name of a field."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


Text = Annotated[str, AfterValidator(_no_nul), AfterValidator(_encodable)]
Base64 = Annotated[bytes, BeforeValidator(_bytes), Field(json_schema_extra={"format": "base64"})]
CallerId = Annotated[
    str, AfterValidator(_caller_id), Field(json_schema_extra={"pattern": CALLER_ID_PATTERN})
]
Environment = Annotated[dict[Text, Text], AfterValidator(_environment)]
Labels = Annotated[dict[Text, Text], AfterValidator(_labels)]
Path = Annotated[Text, StringConstraints(min_length=1, max_length=65536)]
ImageReference = Annotated[Text, StringConstraints(min_length=1, max_length=4096)]
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS, allow_inf_nan=False)]
Life = Seconds | Literal[-1]
Mode = Annotated[int, BeforeValidator(_octal), Field(ge=0, le=0o7777)]
OutputLimit = Annotated[int, Field(ge=1024, le=64 << 20)]


AllowEntry = Annotated[str, StringConstraints(max_length=300), AfterValidator(_allow_entry)]
Port = Annotated[int, BeforeValidator(_port), Field(ge=1, le=65535)]
ForwardUrl = Annotated[str, StringConstraints(max_length=2048), AfterValidator(_forward_url)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")]
HeaderValue = Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e\t]{0,8192}$")]


class Body(BaseModel):
    """A request body: no field that is not named here."""

    model_config = ConfigDict(extra="forbid", frozen=True)
