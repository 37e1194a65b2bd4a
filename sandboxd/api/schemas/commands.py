"""Bodies that start and steer commands and shells."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from sandboxd.api.schemas.fields import (
    _SIGNAL,
    Base64,
    Body,
    CallerId,
    Environment,
    OutputLimit,
    Seconds,
    Text,
    _encodable,
)

Argv = Annotated[list[Text], Field(min_length=1)]


def _kind_of_cmd(cmd: Any) -> str:
    return "argv" if isinstance(cmd, list) else "text"


# What is to run: a list as it is, a text by `/bin/sh -c`.
Cmd = Annotated[
    Annotated[Argv, Tag("argv")] | Annotated[Text, Tag("text")], Discriminator(_kind_of_cmd)
]


class TtyBody(Body):
    """A terminal's size."""

    rows: Annotated[int, Field(ge=1, le=65535)]
    cols: Annotated[int, Field(ge=1, le=65535)]


class ExecBody(Body):
    """`POST …/execs`. A list is run as it is, a text by `/bin/sh -c`."""

    cmd: Cmd
    env: Environment = Field(default_factory=dict)
    cwd: Text = ""
    user: Text = ""
    stdin: Annotated[str, AfterValidator(_encodable)] | None = None
    stdin_b64: Base64 | None = None
    stdin_open: bool = False
    timeout_s: Seconds | None = None
    output_limit_bytes: OutputLimit = 1 << 20
    tty: TtyBody | None = None
    detach: bool = False
    exec_id: CallerId | None = None

    @model_validator(mode="after")
    def _one_input(self) -> ExecBody:
        if self.stdin is not None and self.stdin_b64 is not None:
            raise ValueError("give stdin or stdin_b64, not both")
        return self

    @property
    def input(self) -> bytes | None:
        """The input given with the command."""
        return self.stdin.encode() if self.stdin is not None else self.stdin_b64


class SignalBody(Body):
    """`POST …/signal`."""

    signal: Annotated[str, StringConstraints(pattern=_SIGNAL)]


class AttachOrder(Body):
    """A JSON frame to `…/attach`: one of the two, or both."""

    resize: TtyBody | None = None
    signal: Annotated[str, StringConstraints(pattern=_SIGNAL)] | None = None


class ShellBody(Body):
    """`POST …/shells`."""

    cwd: Text = ""
    env: Environment = Field(default_factory=dict)
    user: Text = ""
    shell_id: CallerId | None = None


class ShellRunBody(Body):
    """`POST …/shells/{sid}/run`."""

    text: Annotated[Text, StringConstraints(max_length=8 << 20)]
    timeout_s: Seconds | None = None
    output_limit_bytes: OutputLimit = 1 << 20
    exec_id: CallerId | None = None
