"""Tokens for one sandbox: signed, so that nothing of them is stored and they outlive a restart."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Literal

from sandboxd.clock import Clock

Rights = Literal["use", "read"]
PREFIX = "sbt-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a token is good for."""

    lease_id: str
    rights: Rights
    expires_at: float


class Tokens:
    """Mints and checks tokens with a secret of this installation."""

    def __init__(self, secret: bytes, *, clock: Clock) -> None:
        self._secret = secret
        self._clock = clock

    def mint(self, grant: Grant) -> str:
        """A token, URL-safe and in lower case."""
        claims = json.dumps([grant.lease_id, grant.rights, round(grant.expires_at, 3)]).encode()
        return PREFIX + _text(claims) + "." + _text(self._sign(claims))

    def check(self, token: str) -> Grant | None:
        """What it is good for; None if it is forged, damaged or expired."""
        body, _, signature = token.removeprefix(PREFIX).partition(".")
        try:
            claims = _bytes(body)
            if not hmac.compare_digest(self._sign(claims), _bytes(signature)):
                return None
            lease_id, rights, expires_at = json.loads(claims)
        except ValueError:
            return None
        if expires_at < self._clock.now():
            return None
        return Grant(lease_id=lease_id, rights=rights, expires_at=expires_at)

    def _sign(self, claims: bytes) -> bytes:
        return hmac.new(self._secret, claims, hashlib.sha256).digest()


# Digits and a to f: a client of Jupyter's lowers the case of a URL that holds a token, and replaces
# every `http` in it.


def _text(data: bytes) -> str:
    return data.hex()


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text)
