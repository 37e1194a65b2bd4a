"""The `SANDBOXD_` variables that override the file, and those that are not ours to read."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sandboxd.settings.problems import Problem


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable and the key that it stands for."""

    name: str
    key: str
    is_number: bool = False


VARIABLES = (
    Variable("SANDBOXD_BACKEND", "backend.kind"),
    Variable("SANDBOXD_RUN_DIR", "backend.run_dir"),
    Variable("SANDBOXD_STATE_DIR", "state_dir"),
    Variable("SANDBOXD_INSTALLATION", "installation"),
    Variable("SANDBOXD_HOST", "server.host"),
    Variable("SANDBOXD_PORT", "server.port", is_number=True),
    Variable("SANDBOXD_PUBLIC_URL", "server.public_url"),
    Variable("SANDBOXD_MAX_SANDBOXES", "limits.max_sandboxes", is_number=True),
    Variable("SANDBOXD_LOG_LEVEL", "log.level"),
    Variable("SANDBOXD_LOG_FORMAT", "log.format"),
)
# Read elsewhere: by the command line and the SDK.
_OTHERS = ("SANDBOXD_CONFIG", "SANDBOXD_API_URL", "SANDBOXD_API_KEY")


def overrides_from(
    env: Mapping[str, str],
) -> tuple[dict[str, object], dict[str, str], list[Problem]]:
    """What the variables set: values by key, the variable each key came from, and what is wrong.

    An empty variable sets nothing. A number that is none stays text, for validation to refuse.
    """
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for variable in VARIABLES:
        text = env.get(variable.name, "")
        if not text or _is_service_link(text):
            continue
        is_int = (
            variable.is_number
            and text.removeprefix("-").isascii()
            and text.removeprefix("-").isdigit()
        )
        values[variable.key] = int(text) if is_int else text
        sources[variable.key] = variable.name
    return values, sources, list(_misspelt(env))


def _is_service_link(text: str) -> bool:
    # Kubernetes gives every container of a namespace with a service named `sandboxd`
    # SANDBOXD_PORT=tcp://ADDRESS:PORT, which is not meant for us.
    return text.startswith(("tcp://", "udp://"))


def _misspelt(env: Mapping[str, str]) -> Iterator[Problem]:
    """Variables that nearly have a known name: taken for a slip, as nobody would read them."""
    known = [variable.name for variable in VARIABLES] + list(_OTHERS)
    for name in sorted(env):
        if not name.startswith("SANDBOXD_") or name in known or _is_service_link(env[name]):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
        if near:
            text = f"there is no such variable; did you mean `{near[0]}`? Rename or unset it"
            yield Problem(source="environment", key=name, text=text)
