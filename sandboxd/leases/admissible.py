"""What a caller may ask of a box beyond its template. Knows capabilities, no doors and no boxes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from anyio import to_thread

from sandboxd.backends.protocol import Capabilities
from sandboxd.errors import SandboxdError
from sandboxd.model.template import BoxSpec, Resources
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


async def check_spec(
    spec: BoxSpec, *, template: BoxSpec, templates: Iterable[BoxSpec], capabilities: Capabilities
) -> None:
    """Whether a caller may have a box that differs so from its template.

    Raises `forbidden` for an image that only a template may name, and `bad_request` for more of
    something than this machine has.
    """
    if not any(spec.image == known.image for known in templates):
        await _check_image(spec.image, capabilities.caller_images)
    if capabilities.most is not None:
        _check_resources(spec.resources, template.resources, capabilities.most)


async def _check_image(image: str, allowed: tuple[str, ...] | None) -> None:
    if allowed is None or image in allowed:
        return
    folders = [folder for folder in allowed if folder.startswith("/")]
    # Links count as where they lead: an unpacked image may hold any link it likes.
    if image.startswith("/") and await to_thread.run_sync(_lies_below, image, folders):
        return
    raise SandboxdError(
        ErrorCode.FORBIDDEN,
        f"image {image!r} may only be named by a template: "
        "give it one, or list its folder in `backend.local.images`",
        details={"field": "image"},
    )


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
