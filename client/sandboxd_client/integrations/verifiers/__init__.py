"""verifiers over the SDK: a runtime for rollouts of 0.4 and later, a Python tool for the classic
environments. Each is imported when it is asked for, with its own generation of verifiers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {
    "SandboxdRuntime": "boxes",
    "runtime": "boxes",
    "KernelPythonEnv": "classic",
}

__all__ = ["KernelPythonEnv", "SandboxdRuntime", "runtime"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
