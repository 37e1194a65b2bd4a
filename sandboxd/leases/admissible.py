"""What a caller may ask of a box beyond its template. Knows capabilities, no doors and no boxes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from anyio import to_thread

from sandboxd.backends.protocol import Capabilities
from sandboxd.errors import SandboxdError
from sandboxd.model.image import allows, image_name
from sandboxd.model.template import BoxSpec, Network, Resources
from sandboxd.wire.codes import ErrorCode

_BOUNDED = ("cpu", "memory_mb", "pids", "disk_mb")


def check_user(user: str, capabilities: Capabilities) -> None:
    """Raises `not_supported` for a second user where boxes have one alone."""
    if user not in {"", "0", "root"} and not capabilities.other_users:
        raise SandboxdError(
            ErrorCode.NOT_SUPPORTED,
            f"user {user!r}: boxes here have one user alone, root inside; "
            "run the daemon as root, or lease without `user`",
            details={"field": "user"},
        )


def check_network(network: Network, capabilities: Capabilities) -> None:
    """Raises `not_supported`, naming what there is, for what no box here can reach."""
    _check_offered("network", network.kind, capabilities.all_networks)


def check_offer(spec: BoxSpec, capabilities: Capabilities) -> None:
    """Raises `not_supported`, naming what there is, for what no box here can have."""
    if spec.runtime:
        _check_offered("runtime", spec.runtime, capabilities.runtimes)
    if spec.resources.gpu and not capabilities.gpu:
        raise SandboxdError(
            ErrorCode.NOT_SUPPORTED,
            "resources.gpu: there is no GPU that boxes here could have",
            details={"field": "resources.gpu"},
        )


def _check_offered(name: str, wanted: str, offered: Iterable[str]) -> None:
    there = sorted(offered)
    if wanted not in there:
        raise SandboxdError(
            ErrorCode.NOT_SUPPORTED,
            f"{name}: boxes here cannot have {wanted!r}; there is: {', '.join(there) or 'none'}",
            details={"field": name, "offered": there},
        )


async def check_spec(
    spec: BoxSpec, *, template: BoxSpec, templates: Iterable[BoxSpec], capabilities: Capabilities
) -> None:
    """Whether a caller may have a box that differs so from its template.

    Raises `forbidden` for an image that only a template may name, and `bad_request` for more of
    something than this machine has.
    """
    await check_image(spec.image, templates=templates, capabilities=capabilities)
    if capabilities.most is not None:
        _check_resources(spec.resources, template.resources, capabilities.most)


async def check_image(
    image: str, *, templates: Iterable[BoxSpec], capabilities: Capabilities
) -> None:
    """Raises `forbidden` for an image that only a template may name."""
    allowed = capabilities.caller_images
    if allowed is None or image in allowed or any(_same(image, t.image) for t in templates):
        return
    folders = [pattern for pattern in allowed if pattern.startswith("/")]
    if not image.startswith("/") and any(
        allows(pattern, image) for pattern in allowed if pattern not in folders
    ):
        return
    # Links count as where they lead: an unpacked image may hold any link it likes.
    if image.startswith("/") and await to_thread.run_sync(_lies_below, image, folders):
        return
    raise SandboxdError(
        ErrorCode.FORBIDDEN,
        f"image {image!r} may only be named by a template: "
        "give it one, or list its folder in `backend.local.images`, "
        "or its name in `backend.docker.allow_images` or `backend.kubernetes.allow_images`",
        details={"field": "image"},
    )


def _same(image: str, known: str) -> bool:
    """Whether two names are one image's, short as they may be."""
    try:
        return image == known or image_name(image) == image_name(known)
    except ValueError:  # a path
        return False


def _lies_below(image: str, folders: list[str]) -> bool:
    try:
        place = Path(image).resolve()
        return any(Path(folder).resolve() in (place, *place.parents) for folder in folders)
    except (OSError, RuntimeError, ValueError):  # a circle of links, a NUL
        return False


def _check_resources(wanted: Resources, template: Resources, most: Resources) -> None:
    for name in _BOUNDED:
        bound = max(getattr(template, name), getattr(most, name))
        if getattr(wanted, name) > bound:
            raise SandboxdError(
                ErrorCode.BAD_REQUEST,
                f"resources.{name}: this machine has {bound:g} in all: ask for less",
                details={"field": f"resources.{name}", "most": bound},
            )
