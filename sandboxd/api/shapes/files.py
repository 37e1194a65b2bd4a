"""Answers about files."""

from __future__ import annotations

from pydantic import BaseModel, Field

from sandboxd.api.shapes.parts import Page
from sandboxd.model.files import FileType


class File(BaseModel):
    """What stands at a path."""

    path: str
    name: str
    name_b64: str = Field("", description="The true name where it is not UTF-8.")
    type: FileType
    size: int
    mode: int
    user: str
    group: str
    modified_at: float
    target: str = Field("", description="Where a link points.")


class Files(Page):
    """Files, in the order of their names."""

    files: list[File]


class Unpacked(BaseModel):
    """What an archive brought."""

    files: int
    bytes: int
