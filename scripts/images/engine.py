"""Images in an engine: built from a registry's, loaded from a root, and what is there already."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
from docker import APIClient
from docker.errors import APIError, DockerException, ImageNotFound
from docker.utils import kwargs_from_env

from scripts.images.machine import network_environment
from scripts.images.recipe import (
    FOLDER,
    INPUTS,
    LABEL,
    NAMES,
    REGISTRY_BASE,
    ImageError,
    Recipe,
    say,
)

# Between two words of the engine: an import says nothing until all is unpacked.
_CALL_S = 900
_MEND_ENGINE = "Start one (apt-get install docker.io), or name it by DOCKER_HOST."


@contextmanager
def engine_client() -> Iterator[APIClient]:
    """The engine that DOCKER_HOST names, else the usual one.

    Raises ImageError where none answers, or where it refuses something.
    """
    try:
        client = APIClient(version="auto", timeout=_CALL_S, **kwargs_from_env())
    except (DockerException, requests.RequestException, OSError) as error:
        raise ImageError(f"no container engine answers ({error}).\n{_MEND_ENGINE}") from error
    try:
        yield client
    except (DockerException, requests.RequestException) as error:
        raise ImageError(f"the engine says: {str(error)[:2000]}\nIs its disk full?") from error
    finally:
        client.close()


def digest_of(client: APIClient, reference: str) -> str:
    """Which build the engine's image of that name is; empty if it has none of ours."""
    labels = (_inspect(client, reference) or {}).get("Config", {}).get("Labels")
    return str((labels or {}).get(LABEL, ""))


def load(client: APIClient, tar: Path, *, reference: str, changes: list[str]) -> str:
    """Make a root's tar file an image of the engine.

    reference: with its tag. changes: what the engine is told of it, as a Dockerfile says it.

    Returns the reference.
    """
    repository, _, tag = reference.rpartition(":")
    answer: Any = client.import_image_from_file(
        str(tar), repository=repository, tag=tag, changes=changes
    )
    raise_for_errors(json.loads(line) for line in str(answer).splitlines())
    return reference


def registry_image(client: APIClient) -> str:
    """The id of what the images are built from: pulled, else as it is there; empty if neither."""
    repository, _, tag = REGISTRY_BASE.partition(":")
    say(f"pulling {REGISTRY_BASE} …")
    try:
        client.pull(repository, tag=tag)
    except (APIError, requests.RequestException) as error:
        say(f"no registry gives {REGISTRY_BASE} ({str(error)[:200]})")
    return str((_inspect(client, REGISTRY_BASE) or {}).get("Id", ""))


def build_tars(client: APIClient, recipe: Recipe, into: Path) -> dict[str, Path]:
    """Build all images from the registry's; each one's root as a tar file, by name."""
    building = {name: f"sandboxd/{name}:building" for name in NAMES}
    try:
        for name, reference in building.items():
            _build(client, recipe, name, reference)
            _export(client, reference, into / f"{name}.tar")
    finally:
        for reference in building.values():
            if _inspect(client, reference) is not None:
                client.remove_image(reference)
    return {name: into / f"{name}.tar" for name in NAMES}


def _build(client: APIClient, recipe: Recipe, name: str, reference: str) -> None:
    say(f"building {name} from {REGISTRY_BASE} …")
    said = client.build(
        fileobj=_context(recipe),
        custom_context=True,
        target=name,
        tag=reference,
        network_mode="host",
        rm=True,
        forcerm=True,
        buildargs=network_environment() | {"KEEP_CA": str(int(recipe.keep_ca))},
        decode=True,
    )
    raise_for_errors(said)


def _export(client: APIClient, image: str, tar: Path) -> None:
    """The flattened root, which has no layer with the build's own files."""
    container = client.create_container(image, command=["true"], network_disabled=True)["Id"]
    try:
        with tar.open("wb") as file:
            for chunk in client.export(container):
                file.write(chunk)
    finally:
        client.remove_container(container, force=True, v=True)


def _context(recipe: Recipe) -> io.BytesIO:
    files = {name: (FOLDER / name).read_bytes() for name in INPUTS}
    return context_of(files | {"ca.pem": recipe.ca_bundle})


def context_of(files: Mapping[str, bytes]) -> io.BytesIO:
    """What an engine is sent to build from: the files by name, Dockerfile among them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    buffer.seek(0)
    return buffer


def _inspect(client: APIClient, reference: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = client.inspect_image(reference)  # type: ignore[no-untyped-call]  # the stubs leave it out
    except ImageNotFound:
        return None
    return found


def raise_for_errors(said: Iterator[Any]) -> None:
    """Read the engine's progress to its end. Raises ImageError for what it says went wrong."""
    for line in said:
        if isinstance(line, dict) and line.get("error"):
            raise ImageError(f"the engine says: {str(line['error'])[:2000]}")
