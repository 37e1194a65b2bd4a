"""Where the daemon is and with which key: arguments first, then the environment."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

DEFAULT_URL = "http://127.0.0.1:8420"


@dataclass(frozen=True, slots=True)
class Address:
    """One daemon's address.

    prefix: the path below which its routes lie, without a slash at the end.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None
    prefix: str
    authority: str  # for the Host header


def address_of(url: str | None, *, tls: ssl.SSLContext | None = None) -> Address:
    """The address that `url`, else SANDBOXD_API_URL, else the default names. Raises ValueError."""
    text = url or os.environ.get("SANDBOXD_API_URL") or DEFAULT_URL
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"the daemon's URL must be http://host:port or https://host, not {text!r}")
    secure = parts.scheme == "https"
    return Address(
        host=parts.hostname,
        port=parts.port or (443 if secure else 80),
        tls=(tls or ssl.create_default_context()) if secure else None,
        prefix=parts.path.rstrip("/"),
        authority=parts.netloc.rpartition("@")[2],
    )


def key_of(key: str | None) -> str | None:
    """The key given, else SANDBOXD_API_KEY, else none."""
    return key or os.environ.get("SANDBOXD_API_KEY") or None
