"""What a configuration may say of images, and what it never shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd.settings import Settings, SettingsError, load_settings
from sandboxd.settings.nouns import ImageOptions


def load(folder: Path, text: str) -> Settings:
    place = folder / "sandboxd.toml"
    place.write_text(text)
    return load_settings(place, env={})


def test_every_key_reaches_the_noun_and_the_password_stays_in_its_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret\n")
    settings = load(
        tmp_path,
        """
        [backend.docker]
        allow_images = ["python:3.*", "ghcr.io/team/*"]
        image_disk_mb = 4096
        pulls_per_registry = 3
        pull_stall_s = 30
        [backend.docker.registries."registry.example:5000"]
        username = "robot"
        password_file = "password"
        """,
    )
    options = settings.backend.docker.images
    login = options.registries["registry.example:5000"]
    assert (login.username, login.password_file) == ("robot", tmp_path / "password")
    assert options.allow_images == ("python:3.*", "ghcr.io/team/*")
    assert (options.disk_mb, options.pulls_per_registry, options.stall_s) == (4096, 3, 30)
    assert "s3cret" not in repr(settings)


def test_without_a_word_callers_name_no_image_and_nothing_is_dropped(tmp_path: Path) -> None:
    assert load(tmp_path, "").backend.docker.images == ImageOptions()
    assert ImageOptions().allow_images == ()
    assert ImageOptions().disk_mb == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[backend.docker.registries."r.example"]\nusername = "x"', "password_file"),
        (
            '[backend.docker.registries."r.example"]\nusername = "x"\npassword_file = "none"',
            "cannot read",
        ),
        ('[backend.docker.registries."https://r.example/v2/"]', "must be HOST or HOST:PORT"),
        ("[backend.docker]\nimage_disk_mb = -1", "image_disk_mb"),
        ("[backend.docker]\npulls_per_registry = 0", "pulls_per_registry"),
        ('[backend.docker]\nallow_images = [""]', "allow_images"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    assert words in str(caught.value)


def test_a_password_written_where_its_file_belongs_is_not_shown(tmp_path: Path) -> None:
    text = '[backend.docker.registries."r.example"]\nusername = "x"\npassword = "s3cret"'
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    assert "s3cret" not in str(caught.value)
