"""Answers of Jupyter's own protocol, as its clients know them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field, RootModel

from sandboxd.model.kernel import KernelState


class JupyterVersion(BaseModel):
    """Whose answers these are."""

    version: str


class JupyterSpec(BaseModel):
    """A kernelspec. spec: what its `kernel.json` says."""

    name: str
    spec: dict[str, Any]
    resources: dict[str, str]


class JupyterSpecs(BaseModel):
    """All kernelspecs, by name."""

    default: str
    kernelspecs: dict[str, JupyterSpec]


class JupyterKernel(BaseModel):
    """A kernel."""

    id: str
    name: str
    last_activity: str = Field(description="ISO 8601, UTC.")
    execution_state: KernelState
    connections: int


class JupyterKernels(RootModel[list[JupyterKernel]]):
    """All kernels."""
