"""Names of container images: what a short name stands for, and which names a pattern allows. Pure.

`python` is short for `docker.io/library/python:latest`, as every engine reads it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

_HUB = "docker.io"
_HUB_NAMES = {_HUB, "index.docker.io", "registry-1.docker.io"}
_REGISTRY = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?"
_PATH = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST = r"sha256:[0-9a-f]{64}"
_REFERENCE = re.compile(rf"(?P<path>{_PATH})(?::(?P<tag>{_TAG}))?(?:@(?P<digest>{_DIGEST}))?\Z")
_ID = re.compile(rf"{_DIGEST}\Z")
_MAX_CHARS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageName:
    """A whole name. tag is empty where a digest is given: engines do not look at it then."""

    registry: str
    path: str
    tag: str = ""
    digest: str = ""

    @property
    def repository(self) -> str:
        """Registry and path, as `docker.io/library/python`."""
        return f"{self.registry}/{self.path}"

    def __str__(self) -> str:
        suffix = f"@{self.digest}" if self.digest else f":{self.tag}"
        return self.repository + suffix


def image_name(reference: str) -> ImageName:
    """The whole name of what `docker pull` takes. Raises ValueError, with the shape it must have.

    The id of an image, which is a bare `sha256:…`, is no name.
    """
    registry, rest = _split_registry(reference)
    match = _REFERENCE.match(rest) if len(reference) <= _MAX_CHARS else None
    if match is None or is_image_id(reference) or not re.fullmatch(_REGISTRY, registry):
        msg = f"{reference[:_MAX_CHARS]!r} is no image reference: [REGISTRY/]NAME[:TAG|@DIGEST]"
        raise ValueError(msg)
    digest = match["digest"] or ""
    return ImageName(
        registry=registry,
        path=_whole_path(registry, match["path"]),
        tag="" if digest else match["tag"] or "latest",
        digest=digest,
    )


def is_image_id(reference: str) -> bool:
    """Whether it names an image by what is in it, as an engine calls it; nothing can pull that."""
    return bool(_ID.match(reference))


def allows(pattern: str, reference: str) -> bool:
    """Whether a pattern of names allows this one.

    Both are read as whole names: `python` is `docker.io/library/python`. Registry, path and tag
    are matched each for itself, with `*` and `?`; a pattern without a tag allows every tag and
    digest, one with a digest that digest alone, and a lone `*` allows everything.
    """
    if pattern == "*":
        return True
    try:
        name = image_name(reference)
    except ValueError:
        return False
    registry, rest = _split_registry(pattern)
    rest, _, digest = rest.partition("@")
    path, _, tag = rest.partition(":")
    return (
        fnmatchcase(name.registry, registry)
        and fnmatchcase(name.path, _whole_path(registry, path))
        and (name.digest == digest if digest else fnmatchcase(name.tag, tag or "*"))
    )


def _split_registry(reference: str) -> tuple[str, str]:
    """The first part is a registry if it looks like a host, as engines decide it."""
    first, slash, rest = reference.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        return _HUB, reference
    return _HUB if first in _HUB_NAMES else first, rest


def _whole_path(registry: str, path: str) -> str:
    return f"library/{path}" if registry == _HUB and "/" not in path else path
