"""Names of images: what short ones stand for, and which a pattern allows."""

from __future__ import annotations

import pytest

from sandboxd.model.image import allows, image_name, is_image_id

DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("reference", "whole"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.12-slim", "docker.io/library/python:3.12-slim"),
        ("team/tool", "docker.io/team/tool:latest"),
        ("docker.io/python", "docker.io/library/python:latest"),
        ("index.docker.io/team/tool", "docker.io/team/tool:latest"),
        ("ghcr.io/team/deep/tool:v1", "ghcr.io/team/deep/tool:v1"),
        ("localhost/tool", "localhost/tool:latest"),
        ("127.0.0.1:5000/tool", "127.0.0.1:5000/tool:latest"),
        (f"python@{DIGEST}", f"docker.io/library/python@{DIGEST}"),
        (f"python:3.12@{DIGEST}", f"docker.io/library/python@{DIGEST}"),
    ],
)
def test_a_short_name_stands_for_a_whole_one(reference: str, whole: str) -> None:
    assert str(image_name(reference)) == whole


@pytest.mark.parametrize(
    "reference",
    ["", "Python", "a b", "a\n", "python:", ":x", "/etc", "a//b", "-a", "a@sha256:1", DIGEST,
     "host.example:x/a", "a" * 600],
)  # fmt: skip
def test_what_is_no_name_is_refused(reference: str) -> None:
    with pytest.raises(ValueError, match="is no image reference"):
        image_name(reference)


def test_an_id_is_no_name() -> None:
    assert is_image_id(DIGEST)
    assert not is_image_id(f"python@{DIGEST}")
    # A name of only hexadecimal digits is a name: engines would take it for the start of an id.
    assert str(image_name("abc123")) == "docker.io/library/abc123:latest"


@pytest.mark.parametrize(
    ("pattern", "reference"),
    [
        ("*", "anything.example/at/all:x"),
        ("python", "python"),
        ("python", "docker.io/library/python:3.11"),
        ("python", f"python@{DIGEST}"),
        ("python:3.*", "python:3.12-slim"),
        ("docker.io/library/*", "python:3.11"),
        ("ghcr.io/team/*", "ghcr.io/team/a/b:c"),
        ("*.example.org/x", "images.example.org/x"),
        (f"python@{DIGEST}", f"python@{DIGEST}"),
    ],
)
def test_a_pattern_allows(pattern: str, reference: str) -> None:
    assert allows(pattern, reference)


@pytest.mark.parametrize(
    ("pattern", "reference"),
    [
        ("python", "evil.example/library/python"),
        ("python", "team/python"),
        ("python:3.*", "python:2.7"),
        ("python:3.*", "python"),
        # A tag beside a digest is looked at by nobody, so it vouches for nothing.
        ("python:3.12", f"python:3.12@{DIGEST}"),
        ("ghcr.io/team/*", "ghcr.io.evil.example/team/x"),
        ("ghcr.io/team/*", "ghcr.io/teams/x"),
        ("library/*", "team/x"),
        ("team/*", DIGEST),
        (f"python@{DIGEST}", f"python@sha256:{'b' * 64}"),
        ("python", "/srv/python"),
        ("python", "Python"),
    ],
)
def test_a_pattern_does_not_allow(pattern: str, reference: str) -> None:
    assert not allows(pattern, reference)
