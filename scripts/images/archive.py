"""Images as files that every container runtime takes: a root's tar, with what is said of it."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_CHUNK = 1 << 20
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageWords:
    """What an image says of itself. architecture: in the words of Go. health: a command that fails
    while it is not well.
    """

    reference: str
    architecture: str
    env: Mapping[str, str] = field(default_factory=dict)
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    user: str = ""
    health: Sequence[str] = ()


def write_archive(layer: Path, into: Path, *, words: ImageWords) -> None:
    """Write the image that has the one layer `layer`, an uncompressed tar, to the file `into`.

    The form is that of `docker save`, which engines and containerd read.
    """
    digest = _digest(layer)
    config = _config(words, digest)
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [words.reference], "Layers": [f"{digest}/layer.tar"]}]
    draft = into.with_suffix(".draft")
    with tarfile.open(draft, "w") as tar:
        _add(tar, name, config)
        with layer.open("rb") as data:
            member = tarfile.TarInfo(f"{digest}/layer.tar")
            member.size = layer.stat().st_size
            tar.addfile(member, data)
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    draft.replace(into)


def layer_of(files: Mapping[str, Path], into: Path) -> None:
    """A layer of executables alone: by their paths in it, without the first slash."""
    with tarfile.open(into, "w") as tar:
        for path, source in sorted(files.items()):
            member = tarfile.TarInfo(path)
            member.size, member.mode = source.stat().st_size, 0o755
            with source.open("rb") as data:
                tar.addfile(member, data)


def _config(words: ImageWords, digest: str) -> bytes:
    config: dict[str, Any] = {"Env": [f"{name}={value}" for name, value in words.env.items()]}
    if words.entrypoint:
        config["Entrypoint"] = list(words.entrypoint)
    if words.command:
        config["Cmd"] = list(words.command)
    if words.user:
        config["User"] = words.user
    if words.health:
        config["Healthcheck"] = {"Test": ["CMD", *words.health], "Interval": 10 * _SECOND_NS}
    whole = {
        "architecture": words.architecture,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "sandboxd"}],
    }
    return json.dumps(whole, sort_keys=True).encode()


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as data:
        while chunk := data.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
