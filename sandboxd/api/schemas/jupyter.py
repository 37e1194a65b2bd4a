"""Bodies of Jupyter's own protocol. Its clients send fields that mean nothing here."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from sandboxd.api.schemas.fields import Body, Environment
from sandboxd.api.schemas.kernels import SpecName


class JupyterKernelBody(Body):
    """`POST …/jupyter/api/kernels`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: SpecName = "python3"
    env: Environment = Field(default_factory=dict)
