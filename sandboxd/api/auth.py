"""Who is calling: a key's owner, the bearer of a sandbox's token, or anybody on this machine."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from sandboxd.api.tokens import PREFIX, Grant, Tokens
from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

LOCAL_OWNER = "local"  # who owns what is made without a key


@dataclass(frozen=True, slots=True)
class Principal:
    """owner: whose leases may be seen; None for a token, which is bound to `lease_id` instead, and
    for the operator, who sees all.
    """

    owner: str | None
    lease_id: str | None = None
    rights: Literal["operator", "all", "use", "read"] = "all"


_NOT_FOR_TOKENS = ("/renew", "/tokens", "/grading")


class Auth:
    """Keys and tokens of this daemon."""

    def __init__(self, keys: Mapping[str, str], *, tokens: Tokens, operator_key: str) -> None:
        """keys: key → owner's name. None at all: only this machine may call."""
        self._operator = _digest(operator_key)
        self._owners = {_digest(key): name for key, name in keys.items()}
        self._tokens = tokens

    def change_keys(self, keys: Mapping[str, str]) -> None:
        """Take other keys, from the next request on."""
        self._owners = {_digest(key): name for key, name in keys.items()}

    @property
    def open(self) -> bool:
        """Whether no key is asked for."""
        return not self._owners

    def by_header(self, authorization: str) -> Principal:
        """Raises `unauthenticated`."""
        scheme, _, secret = authorization.partition(" ")
        secret = secret.strip()
        if scheme.lower() == "bearer" and secret.startswith(PREFIX):
            return self.by_token(secret)
        if scheme.lower() == "bearer" and hmac.compare_digest(_digest(secret), self._operator):
            return Principal(None, rights="operator")
        if self.open:
            return Principal(LOCAL_OWNER)
        # Looked up by digest: the time it takes tells nothing about the keys.
        owner = self._owners.get(_digest(secret)) if scheme.lower() == "bearer" else None
        if owner is None:
            raise SandboxdError(
                ErrorCode.UNAUTHENTICATED, "send `Authorization: Bearer KEY` with one of its keys"
            )
        return Principal(owner)

    def knows(self, authorization: str) -> bool:
        """Whether it is a key or a token of this daemon's that a header carries, valid or not."""
        scheme, _, secret = authorization.partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer":
            return False
        digest = _digest(secret)
        is_key = digest in self._owners or hmac.compare_digest(digest, self._operator)
        return is_key or secret.startswith(PREFIX)

    def by_token(self, token: str) -> Principal:
        """Raises `unauthenticated`."""
        grant: Grant | None = self._tokens.check(token)
        if grant is None:
            raise SandboxdError(
                ErrorCode.UNAUTHENTICATED, "the token is not valid, or no longer: ask for a new one"
            )
        return Principal(None, grant.lease_id, grant.rights)


def check_rights(principal: Principal, method: str, path: str) -> None:
    """Raises `not_found` for another sandbox and `forbidden` for what a token may not do."""
    if principal.lease_id is None:
        return
    own = f"/v1/sandboxes/{principal.lease_id}"
    if not (path == own or path.startswith(own + "/")):
        raise SandboxdError(ErrorCode.NOT_FOUND, "this token is good for one sandbox alone")
    reading = method in {"GET", "HEAD"}
    rest = path[len(own) :]
    if principal.rights == "read" and not reading:
        raise SandboxdError(ErrorCode.FORBIDDEN, "this token may only read")
    if not reading and (rest == "" or rest in _NOT_FOR_TOKENS):
        raise SandboxdError(
            ErrorCode.FORBIDDEN, "a token may not renew, release or pass on its sandbox"
        )


def check_local(host: str, origin: str) -> None:
    """Raises `forbidden` unless a keyless daemon is spoken to under a loopback name, and not by a
    page of another site (DNS rebinding, cross-site requests).
    """
    if not _is_loopback_name(_host_of(f"//{host}")):
        raise SandboxdError(
            ErrorCode.FORBIDDEN, "without keys this daemon answers under loopback names alone"
        )
    if origin and not _is_loopback_name(_host_of(origin)):
        raise SandboxdError(
            ErrorCode.FORBIDDEN, "without keys this daemon refuses pages of other sites"
        )


def _host_of(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:  # half a bracket, say: the name of nobody
        return ""


def _is_loopback_name(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
