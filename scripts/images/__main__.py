"""`make images`: builds `base` and `python` into an engine, a folder or a tar file."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from docker import APIClient

from scripts.images import cache, engine
from scripts.images.machine import machines_bundle
from scripts.images.recipe import CACHE, NAMES, SUITE, ImageError, Recipe, say


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.images", description=__doc__)
    add = parser.add_argument
    add("--image", action="append", choices=NAMES, help="only this one (may be repeated)")
    add(
        "--tag",
        metavar="REFERENCE",
        help="name in the engine, with {name} for the image's (default sandboxd/{name}:latest); "
        "with --root or --tar, an engine is only used if this is given",
    )
    add("--root", type=Path, metavar="DIR", help="unpack to DIR/NAME, for the local backend")
    add("--tar", type=Path, metavar="DIR", help="write the root to DIR/NAME.tar")
    add("--source", choices=("auto", "registry", "debian"), default="auto", help="what from")
    add("--suite", default=SUITE, help=f"Debian's release (default {SUITE})")
    add("--mirror", default="", help="Debian's mirror (default debootstrap's own)")
    add("--ca-bundle", type=Path, help="trust these too while building (default SSL_CERT_FILE)")
    add("--keep-ca", action="store_true", help="the images go on trusting them")
    return parser.parse_args(argv)


def build(args: argparse.Namespace) -> None:
    """Build what was asked for. Raises ImageError."""
    names = args.image or list(NAMES)
    tag = args.tag or ("" if args.root or args.tar else "sandboxd/{name}:latest")
    recipe = Recipe(
        suite=args.suite,
        mirror=args.mirror,
        ca_bundle=args.ca_bundle.read_bytes() if args.ca_bundle else machines_bundle(),
        keep_ca=args.keep_ca,
    )
    with ExitStack() as stack:
        client: APIClient | None = None
        if tag or args.source == "registry":
            client = stack.enter_context(engine.engine_client())
        source = _source(args.source, client)
        if client is not None and _is_there(client, names, tag, recipe.digest(source)):
            names = names if args.root or args.tar else []
            tag = ""
        if not names:
            return
        tars = stack.enter_context(_tars(recipe, source, client))
        for name in names:
            _put(name, tars[name], root=args.root, folder=args.tar)
            if client is not None and tag:
                changes = recipe.changes(name, recipe.digest(source))
                reference = tag.replace("{name}", name)
                engine.load(client, tars[name], reference=reference, changes=changes)
                say(f"{reference} is in the engine")


def _source(wanted: str, client: APIClient | None) -> str:
    """`debian`, or the registry image's id."""
    if wanted == "debian" or client is None:
        return "debian"
    image = engine.registry_image(client)
    if not image and wanted == "registry":
        raise ImageError("no registry answers: use --source debian, which needs none")
    return image or "debian"


def _is_there(client: APIClient, names: list[str], tag: str, digest: str) -> bool:
    if not tag:
        return False
    references = [tag.replace("{name}", name) for name in names]
    there = all(engine.digest_of(client, reference) == digest for reference in references)
    if there:
        say(f"{', '.join(references)} in the engine: built from these inputs already")
    return there


@contextmanager
def _tars(recipe: Recipe, source: str, client: APIClient | None) -> Iterator[dict[str, Path]]:
    if source == "debian" or client is None:
        yield cache.cached_tars(recipe)
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="export-", dir=CACHE) as folder:
        yield engine.build_tars(client, recipe, Path(folder))


def _put(name: str, tar: Path, *, root: Path | None, folder: Path | None) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(tar, folder / f"{name}.tar")
        say(f"{folder / name}.tar is written")
    if root is not None:
        _unpack(tar, root / name)


def _unpack(tar: Path, place: Path) -> None:
    if place.exists() and any(place.iterdir()):
        raise ImageError(f"{place} is not empty: remove it, or name another folder by --root")
    place.mkdir(parents=True, exist_ok=True)
    command = ["tar", "-C", str(place), "--numeric-owner", "-xpf", str(tar)]
    if subprocess.run(command, check=False).returncode != 0:
        raise ImageError(f"the root could not be unpacked to {place}. Is the disk full?")
    say(f"{place} is unpacked: `image = {str(place.resolve())!r}` in a local template")


def main(argv: list[str]) -> int:
    """Build, or say the one thing to do."""
    try:
        build(parse(argv))
    except ImageError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"images: {error}\nIs the folder yours, and its disk not full?", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("images: interrupted; what was half made is removed", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
