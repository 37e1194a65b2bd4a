"""Bodies about files."""

from __future__ import annotations

from pydantic import (
    Field,
)

from sandboxd.api.schemas.fields import Body, Mode, Path, Text


class MkdirBody(Body):
    """`POST …/files/mkdir`."""

    path: Path
    mode: Mode = 0o755
    parents: bool = True
    user: Text = ""


class MoveBody(Body):
    """`POST …/files/move`."""

    source: Path = Field(alias="from")
    to: Path
    overwrite: bool = True
    user: Text = ""
