"""Bodies about kernels and their cells."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from sandboxd.api.schemas.fields import Body, CallerId, Environment, Seconds, Text

SpecName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class KernelBody(Body):
    """`POST …/kernels`."""

    spec: SpecName = "python3"
    env: Environment = Field(default_factory=dict)
    cwd: Text = ""
    kernel_id: CallerId | None = None


class CellBody(Body):
    """`POST …/kernels/{kid}/execute`."""

    code: Annotated[Text, StringConstraints(max_length=8 << 20)]
    timeout_s: Seconds | None = None
    cell_id: CallerId | None = None
    allow_stdin: bool = False
    stop_on_error: bool = True
    store_history: bool = True
    detach: bool = False


class InputBody(Body):
    """`POST …/kernels/{kid}/input`."""

    text: Annotated[Text, StringConstraints(max_length=1 << 20)]


class CodeBody(Body):
    """`POST …/kernels/{kid}/complete` and `/inspect`; cursor: in characters, the end if null."""

    code: Annotated[Text, StringConstraints(max_length=1 << 20)]
    cursor: Annotated[int, Field(ge=0)] | None = None
    detail: Annotated[int, Field(ge=0, le=1)] = 0

    @model_validator(mode="after")
    def _in_the_code(self) -> CodeBody:
        # A kernel that is asked for what there is not may never answer.
        if self.cursor is not None and self.cursor > len(self.code):
            raise ValueError("the cursor is behind the end of the code")
        return self
