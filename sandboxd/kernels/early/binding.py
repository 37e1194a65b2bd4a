"""What a kernel is told by us alone, without count or history; and how one that ran before anybody
leased its sandbox is given what the lease brings. Pure.

Everything is said as expressions: unlike code they leave nothing in the kernel's namespace, and
no text in its tracebacks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sandboxd.guest.kernels import Changes
from sandboxd.kernels.early.pieces import PRINTED_IN_PIECES
from sandboxd.kernels.early.threads import THREADS_FOLLOW_CELLS
from sandboxd.kernels.messages import Message

PYTHON = "python"

# A kernel drops what it shows once a thousand messages wait for a reader; without a bound it keeps
# them, in its own sandbox's memory. Kernels that have no such socket have no such bound.
_KEEP_ALL = "setattr(get_ipython().kernel.iopub_thread.socket, 'sndhwm', 0)"

# What every Python kernel is told before its first cell, each for itself.
PREPARATION = {
    "keep": _KEEP_ALL,
    "pieces": PRINTED_IN_PIECES,
    "threads": THREADS_FOLLOW_CELLS,
}

# What counts when a program starts, and never again: where it and its modules are found, how many
# threads its libraries have, its language and home. With PATH, another `python3` may be meant.
_AT_START = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "GLIBC_TUNABLES", "IPYTHONDIR"}
)
_AT_START_BEGINNINGS = ("PYTHON", "LD_", "LC_", "JUPYTER_", "MALLOC_", "OMP_", "GOMP_", "KMP_")
_MOST_WORDS = 2000
_AT_START_ENDS = ("_NUM_THREADS", "_MAXIMUM_THREADS")


def counts_at_start(name: str) -> bool:
    """Whether a variable has to be there when a kernel starts."""
    return (
        name in _AT_START or name.startswith(_AT_START_BEGINNINGS) or name.endswith(_AT_START_ENDS)
    )


def can_bind(changes: Changes, *, language: str) -> bool:
    """Whether a kernel that runs can be given them; else it has to be started anew."""
    names = [*changes.env, *changes.unset]
    if changes.anew or any(map(counts_at_start, names)):
        return False
    return language == PYTHON or not (names or changes.cwd)


def binding(changes: Changes) -> dict[str, str]:
    """Expressions that give a Python kernel what it lacks; empty where it lacks nothing."""
    steps: dict[str, str] = {}
    if changes.env:
        values = ascii(json.dumps(dict(changes.env)))
        steps["env"] = f"__import__('os').environ.update(__import__('json').loads({values}))"
    if changes.unset:
        names = list(changes.unset)
        steps["unset"] = (
            f"[__import__('os').environ.pop(name, None) for name in {names!a}] and None"
        )
    if "TZ" in changes.env or "TZ" in changes.unset:
        steps["tz"] = "__import__('time').tzset()"
    if changes.cwd:
        steps["cwd"] = f"__import__('os').chdir({changes.cwd!a})"
    return steps


def importing(module: str) -> dict[str, str]:
    """An expression that imports a module, so that a later import finds it."""
    return {"import": f"__import__('importlib').import_module({module!a}) and None"}


def silent(expressions: Mapping[str, str], *, code: str = "") -> dict[str, Any]:
    """The content of a request that evaluates expressions, after code if there is any."""
    return {
        "code": code,
        "silent": True,
        "store_history": False,
        "user_expressions": dict(expressions),
        "allow_stdin": False,
        "stop_on_error": False,
    }


def failure(reply: Message) -> str | None:
    """Why what was asked so was not done, in words; None where it was."""
    if reply.content.get("status") in {"error", "aborted"}:
        return _words(reply.content)
    values = reply.content.get("user_expressions")
    for value in values.values() if isinstance(values, dict) else ():
        if not isinstance(value, dict) or value.get("status") != "ok":
            return _words(value if isinstance(value, dict) else {})
    return None


def _words(said: Mapping[str, Any]) -> str:
    return f"{said.get('ename', 'no answer')}: {said.get('evalue', '')}"[:_MOST_WORDS]


def language_of(info: Message) -> str:
    """What a kernel says that it speaks, from its `kernel_info_reply`."""
    language = info.content.get("language_info")
    name = language.get("name") if isinstance(language, dict) else None
    return name if isinstance(name, str) else ""
